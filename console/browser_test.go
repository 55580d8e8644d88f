package console

import (
	"bytes"
	"context"
	"image"
	"image/color/palette"
	"image/draw"
	"image/png"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/network"
	chromepage "github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// browse starts a headless Chromium; each test has one of its own.
func browse(t *testing.T) context.Context {
	t.Helper()
	program := os.Getenv("LOCKS_CHROMIUM")
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if found, err := exec.LookPath(name); err == nil && program == "" {
			program = found
		}
	}
	if program == "" {
		t.Skip("SKIPPED: there is no Chromium here (on Debian: apt-get install chromium; or name one in LOCKS_CHROMIUM)")
	}
	options := []chromedp.ExecAllocatorOption{
		chromedp.ExecPath(program), chromedp.UserDataDir(t.TempDir()), chromedp.NoFirstRun, chromedp.NoSandbox, chromedp.Headless, chromedp.DisableGPU,
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-background-networking", true), chromedp.Flag("disable-component-update", true),
		chromedp.Flag("disable-sync", true), chromedp.WSURLReadTimeout(2 * time.Minute),
	}
	allocator, cancel := chromedp.NewExecAllocator(ctx, options...)
	t.Cleanup(cancel)
	browser, cancel := chromedp.NewContext(allocator)
	t.Cleanup(func() {
		chromedp.Cancel(browser)
		cancel()
	})
	run(t, browser) // starts it, without a time for its life
	patient, cancel := context.WithTimeout(browser, 4*time.Minute)
	t.Cleanup(cancel)
	call(t, patient, network.Enable, network.EnableParams{})
	call(t, patient, network.SetExtraHTTPHeaders, network.SetExtraHTTPHeadersParams{Headers: network.Headers{"Operator": "alice"}})
	size(t, patient, 1200, 800)
	return patient
}

func run(t *testing.T, ctx context.Context, steps ...chromedp.Action[chromedp.Void]) {
	t.Helper()
	must(t, chromedp.Do(ctx, steps...))
}

// call sends a command of the browser's protocol.
func call[P, R any](t *testing.T, ctx context.Context, command cdp.Command[P, R], params P) {
	t.Helper()
	_, err := chromedp.Call(ctx, command, params)
	must(t, err)
}

func size(t *testing.T, ctx context.Context, width, height int64) {
	t.Helper()
	call(t, ctx, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: width, Height: height, DeviceScaleFactor: 1})
}

func scheme(t *testing.T, ctx context.Context, name string) {
	t.Helper()
	call(t, ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: name}}})
}

// eval is what a script says.
func eval[T any](t *testing.T, ctx context.Context, script string) T {
	t.Helper()
	answer, err := chromedp.Run(ctx, chromedp.Evaluate[T](script))
	must(t, err)
	return answer
}

// shown is the text that a reader sees.
func shown(t *testing.T, ctx context.Context) string {
	t.Helper()
	return eval[string](t, ctx, "document.querySelector('main').textContent")
}

// until waits for a script to be true.
func until(t *testing.T, ctx context.Context, script string) {
	t.Helper()
	run(t, ctx, chromedp.Poll[chromedp.Void](script, chromedp.WithPollingInterval(50*time.Millisecond), chromedp.WithPollingTimeout(30*time.Second)))
}

// picture keeps what is seen for the docs, when LOCKS_CONSOLE_PICTURES names a directory.
func picture(t *testing.T, ctx context.Context, name string) {
	t.Helper()
	dir := os.Getenv("LOCKS_CONSOLE_PICTURES")
	if dir == "" {
		return
	}
	taken, err := chromedp.Run(ctx, chromedp.CaptureScreenshot())
	must(t, err)
	seen, err := png.Decode(bytes.NewReader(taken))
	must(t, err)
	small := image.NewPaletted(seen.Bounds(), palette.Plan9)
	draw.Draw(small, small.Bounds(), seen, image.Point{}, draw.Src)
	var out bytes.Buffer
	must(t, (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&out, small))
	must(t, os.WriteFile(filepath.Join(dir, name+".png"), out.Bytes(), 0o644))
}

const (
	// unreadable lists the texts whose contrast with what is behind them is below 4.5.
	unreadable = `(() => {
		const parse = (c) => c.match(/[\d.]+/g).map(Number);
		const light = ([r, g, b]) => [r, g, b].map((v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4).reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
		const behind = (e) => { for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor); if (c[3] !== 0) return c; } return [255, 255, 255]; };
		const bad = [];
		for (const e of document.querySelectorAll("body *")) {
			if (![...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim())) continue;
			const [a, b] = [light(parse(getComputedStyle(e).color)), light(behind(e))].sort((a, b) => b - a);
			if ((a + 0.05) / (b + 0.05) < 4.5) bad.push(e.outerHTML.slice(0, 120));
		}
		return bad.join("\n");
	})()`
	// nameless lists what can be used and has no name, and tables and pages without what readers of screens go by.
	nameless = `[...document.querySelectorAll("a, button, input:not([type=hidden]), select, textarea")]
		.filter((e) => !(e.textContent.trim() || e.getAttribute("aria-label") || e.labels && e.labels.length)).map((e) => e.outerHTML)
		.concat(document.documentElement.lang ? [] : ["no language"], document.querySelectorAll("h1").length === 1 ? [] : ["not one h1"], [...document.querySelectorAll("th:not([scope])")].map((e) => e.outerHTML)).join("\n")`
	sideways = `document.documentElement.scrollWidth > document.documentElement.clientWidth ? document.documentElement.scrollWidth + " wide" : ""`
)

var everyPage = []string{"/", "/keys", "/mutexes", "/leases", "/throttles", "/timeouts", "/slots", "/limits", "/queues", "/tasks", "/requests", "/ledger", "/search?q=x", "/nothing", "/act?do=release-mutex&id=x"}

// Every page can be read: by its contrast, on a phone, in the dark, by its names, and by the keyboard; empty and full.
func TestBrowserReads(t *testing.T) {
	s := open(t, "", true)
	ctx := browse(t)
	check := func(state string) {
		for _, colors := range []string{"light", "dark"} {
			for _, width := range []int64{1200, 360} {
				scheme(t, ctx, colors)
				size(t, ctx, width, 800)
				for _, path := range everyPage {
					run(t, ctx, chromedp.Navigate(s.url+path), chromedp.WaitReady("h1"))
					for what, script := range map[string]string{"too little contrast": unreadable, "no name": nameless, "scrolls sideways": sideways} {
						if found := eval[string](t, ctx, script); found != "" {
							t.Errorf("%s, %s, %s, %d wide: %s: %s", path, state, colors, width, what, found)
						}
					}
				}
			}
		}
	}
	check("empty")
	healthy := open(t, "", false)
	healthy.nothingFound()
	run(t, ctx, chromedp.Navigate(healthy.url+"/"), chromedp.WaitVisible("main .healthy"))
	s.trouble()
	s.blocked("customer:42")
	s.things("nightly import")
	s.things(strings.Repeat("x", 1024))
	check("full")

	size(t, ctx, 1200, 800)
	run(t, ctx, chromedp.Navigate(s.url+"/"), chromedp.WaitReady("h1"), chromedp.KeyEvent(kb.Tab))
	if focused := eval[string](t, ctx, "document.activeElement.textContent"); focused != "To the content" {
		t.Errorf("the first stop of the keyboard is %q", focused)
	}
	run(t, ctx, chromedp.KeyEvent(kb.Enter), chromedp.KeyEvent(kb.Tab))
	if !eval[bool](t, ctx, "document.querySelector('main').contains(document.activeElement)") {
		t.Error("the content is not next")
	}
	t.Run("the checks see a lapse", func(t *testing.T) {
		eval[bool](t, ctx, `document.querySelector("main").insertAdjacentHTML("beforeend", "<p style='color:#888;background:#fff'>pale</p><a href='x'></a><div style='width:9999px'>wide</div>"), true`)
		eval[bool](t, ctx, `document.querySelector("main p:last-of-type").style.color = "#888", document.querySelector("main p:last-of-type").style.backgroundColor = "#fff", document.querySelector("main div:last-child").style.width = "9999px", true`)
		for _, script := range []string{unreadable, nameless, sideways} {
			if eval[string](t, ctx, script) == "" {
				t.Error("not seen by", script)
			}
		}
	})
}

// What is called like a script or an image is a text, and is whole.
func TestBrowserHostile(t *testing.T) {
	s := open(t, "", true)
	for _, name := range hostile {
		s.things(name)
	}
	s.blocked(hostile[0])
	ctx := browse(t)
	for _, path := range []string{"/", "/keys", "/mutexes", "/leases", "/throttles", "/timeouts", "/slots", "/limits", "/queues", "/tasks", "/requests", "/ledger"} {
		run(t, ctx, chromedp.Navigate(s.url+path), chromedp.WaitReady("h1"))
		text := shown(t, ctx)
		for _, name := range hostile {
			if path == "/keys" {
				name = hostile[0][:49] + "..." // so much of it fits into its waiters' application_name
			}
			if !strings.Contains(text, name) {
				t.Errorf("%s does not show %.40q", path, name)
			}
		}
		if title := eval[string](t, ctx, "document.title"); !strings.HasSuffix(title, " · locks") {
			t.Errorf("%s is called %q", path, title)
		}
		if eval[int](t, ctx, "document.querySelectorAll('main img, main script').length") > 0 {
			t.Errorf("%s has elements of a name", path)
		}
		// A name that reads from right to left turns nothing but itself around.
		if eval[int](t, ctx, `[...document.querySelectorAll("main td, main li > div")].filter((e) => [...e.childNodes].some((n) => n.nodeType === 3 && /[\u202e\u2066]/.test(n.textContent))).length`) > 0 {
			t.Errorf("%s has a name that is not isolated", path)
		}
	}
}

// From a click to the ledger, as a person does it.
func TestBrowserAction(t *testing.T) {
	s := open(t, "/locks", true)
	s.sql("select from lock.acquire_lease('leader', 'host-7', '1 hour')")
	ctx := browse(t)
	run(t, ctx,
		chromedp.Navigate(s.url+"/leases"), chromedp.Click(`//a[text()="Force release" or bdi="Force release"]`),
		chromedp.WaitVisible("#reason"),
	)
	if text := shown(t, ctx); !strings.Contains(text, "Its holder loses it") || !strings.Contains(text, "leader") || !strings.Contains(text, "alice") {
		t.Error(text)
	}
	// Without a reason the browser sends nothing.
	run(t, ctx, chromedp.Click("main button.act"))
	if s.answer("select count(*) from lock.lease") != "1" {
		t.Fatal("released without a reason")
	}
	run(t, ctx, chromedp.SendKeys("#reason", "host-7 burnt down"), chromedp.Click("main button.act"), chromedp.WaitVisible(`[role="status"]`))
	if text := shown(t, ctx); !strings.Contains(text, "alice: host-7 burnt down") || !strings.Contains(text, "Done.") {
		t.Error(text)
	}
	if line := s.answer("select kind || ' ' || id || ' ' || reason || ' ' || (previous ->> 'owner') || ' ' || (select count(*) from lock.lease) from lock.forced_release"); line != "lease leader alice: host-7 burnt down host-7 0" {
		t.Error(line)
	}
}

// The page loads itself again while it is seen, keeps the focus, says when it cannot, and stops when it is hidden or told to.
func TestBrowserRefresh(t *testing.T) {
	s := open(t, "", false)
	s.sql("select lock.acquire_mutex('first', 'x')")
	ctx := browse(t)
	// The page's timers are kept, to be run here: nothing of this waits for a clock.
	call(t, ctx, chromepage.AddScriptToEvaluateOnNewDocument, chromepage.AddScriptToEvaluateOnNewDocumentParams{Source: `
			window.timers = new Map(); let n = 0;
			window.setInterval = (f, every) => { window.timers.set(++n, {f, every}); return n; };
			window.clearInterval = (i) => window.timers.delete(i);
			window.tick = () => { for (const t of window.timers.values()) t.f(); return window.timers.size; };
			let hidden = false;
			Object.defineProperty(document, "hidden", {get: () => hidden});
			window.hide = (h) => { hidden = h; document.dispatchEvent(new Event("visibilitychange")); };
		`})
	run(t, ctx, chromedp.Navigate(s.url+"/mutexes"), chromedp.WaitReady("#refresh button"))
	if every := eval[int](t, ctx, "[...window.timers.values()][0].every"); every != 5000 {
		t.Errorf("every %d ms", every)
	}
	eval[bool](t, ctx, `document.querySelector("main td a").focus(), true`)
	s.sql("select lock.acquire_mutex('second', 'x')")
	eval[int](t, ctx, "window.tick()")
	until(t, ctx, `document.querySelector("main").textContent.includes("second")`)
	if focused := eval[string](t, ctx, "document.activeElement.textContent"); focused != "first" {
		t.Errorf("the focus went to %q", focused)
	}
	timers := func(what string, want int) {
		t.Helper()
		if got := eval[int](t, ctx, "window.timers.size"); got != want {
			t.Errorf("%s: %d timers run, wanted %d", what, got, want)
		}
	}
	timers("seen", 1)
	eval[bool](t, ctx, "window.hide(true), true")
	timers("hidden", 0)
	s.sql("select lock.acquire_mutex('third', 'x')")
	eval[bool](t, ctx, "window.hide(false), true")
	until(t, ctx, `document.querySelector("main").textContent.includes("third")`)
	timers("seen again", 1)
	run(t, ctx, chromedp.Click("#refresh button"))
	timers("stopped", 0)
	eval[bool](t, ctx, "window.hide(true), window.hide(false), true")
	timers("stopped and seen again", 0)
	run(t, ctx, chromedp.Click("#refresh button"))
	timers("started", 1)

	// A failing page is told, and the last good one stays.
	eval[bool](t, ctx, "window.fetch = async () => { throw new Error('down') }, true")
	until(t, ctx, `window.tick() && document.getElementById("refresh").textContent.includes("what you see is old")`)
	if !strings.Contains(shown(t, ctx), "third") {
		t.Error("the page went away")
	}
	// So is one that never comes, and the reader sees that wherever the page stands.
	run(t, ctx, chromedp.Navigate(s.url+"/mutexes"), chromedp.WaitReady("#refresh button"))
	eval[bool](t, ctx, `
		AbortSignal.timeout = (n) => { window.patience = n; const c = new AbortController(); window.lose = () => c.abort(); return c.signal; };
		window.fetch = (_, o) => new Promise((_, no) => o.signal.addEventListener("abort", () => no(o.signal.reason)));
		window.tick(); window.patience < 10000 && (window.lose(), true)`)
	until(t, ctx, `document.getElementById("refresh").textContent.includes("what you see is old")`)
	if top := eval[float64](t, ctx, `document.querySelector("#refresh .bad").getBoundingClientRect().top`); top != 0 {
		t.Errorf("the warning is %v from the top", top)
	}
	// A form is not taken away from who fills it in.
	acting := open(t, "", true)
	run(t, ctx, chromedp.Navigate(acting.url+"/act?do=release-mutex&id=x"), chromedp.WaitVisible("#reason"))
	timers("a form", 0)
}

func TestBrowserWithoutScripts(t *testing.T) {
	s := open(t, "", true)
	s.trouble()
	ctx := browse(t)
	call(t, ctx, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true})
	run(t, ctx, chromedp.Navigate(s.url+"/"), chromedp.WaitVisible(`//h2[text()="Dead letters"]`),
		chromedp.Click(`//section[h2="Dead letters"]//a`), chromedp.WaitVisible(`//td//*[text()="invoice-16"]`),
		chromedp.Click(`//td//a[bdi="invoice-16"]`), chromedp.WaitVisible(`//*[text()="mailbox full"]`),
		chromedp.Click(`//a[bdi="Retry"]`), chromedp.WaitVisible("#reason"), chromedp.SendKeys("#reason", "the mailbox is empty again"),
		chromedp.Click("main button.act"), chromedp.WaitVisible(`[role="status"]`))
	if s.answer("select status from lock.task where id = 'invoice-16'") != "new" {
		t.Error("not revived")
	}
}

// What docs/console.md shows can be shown; make console-pictures keeps it.
func TestBrowserPictures(t *testing.T) {
	s := open(t, "", true)
	ctx := browse(t)
	s.trouble()
	s.sql("alter database " + s.answer("select quote_ident(current_database())") + " reset synchronous_commit")
	s.reader.Reset()
	s.blocked("customer:42")
	size(t, ctx, 1000, 900)
	run(t, ctx, chromedp.Navigate(s.url+"/"), chromedp.WaitReady("#refresh button"))
	picture(t, ctx, "wrong")
	size(t, ctx, 700, 480)
	run(t, ctx, chromedp.Navigate(s.url+"/act?do=release-lease&id=leader&token=1"), chromedp.WaitVisible("#reason"))
	picture(t, ctx, "action")
	scheme(t, ctx, "dark")
	size(t, ctx, 360, 700)
	run(t, ctx, chromedp.Navigate(s.url+"/queues"), chromedp.WaitReady("#refresh button"))
	picture(t, ctx, "phone")
}
