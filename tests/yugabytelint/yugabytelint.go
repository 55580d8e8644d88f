//go:build cgo

package yugabytelint

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"

	pg_query "github.com/pganalyze/pg_query_go/v6"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// A Finding is one thing that does not run there.
type Finding struct {
	Path string
	Line int // where the statement starts
	Rule string
	Text string
}

func (f Finding) String() string { return fmt.Sprintf("%s:%d: %s: %s", f.Path, f.Line, f.Rule, f.Text) }

// Rules says for every rule why it is one.
var Rules = map[string]string{
	"syntax":              "the PostgreSQL parser does not take it (YugabyteDB's own syntax, such as a hash key, does not run on PostgreSQL)",
	"unreadable":          "dynamic SQL must stand there as text, so that it can be checked",
	"newer syntax":        "YugabyteDB is PostgreSQL 15: no merge, no SQL/JSON constructors",
	"unsupported":         "its grammar refuses the statement",
	"drop several":        "one object per drop, except tables",
	"schema elements":     "create schema takes no elements",
	"transition table":    "no referencing in triggers",
	"constraint trigger":  "no constraint triggers",
	"exclude":             "no exclusion constraints",
	"inherits":            "no inheritance",
	"deferrable":          "only foreign keys can be deferrable",
	"access method":       "indexes are btree or gin",
	"index storage":       "an index, unique or primary key takes no storage parameters",
	"range index":         "the first key of an index is hashed there unless it says asc or desc, and a hashed time serves no range",
	"key type":            "json, arrays, intervals, network addresses, ranges, bits, text search and composites cannot be index keys",
	"system column":       "ctid, xmin, xmax, cmin and cmax do not exist: ask lock_internal.is_yugabyte() first",
	"lock table":          "lock table works for access share alone",
	"collate":             "no collation but \"C\"",
	"type reference":      "no %type in a signature",
	"alter function":      "alter function came in 2026.1: create or replace it",
	"two-phase commit":    "no prepared transactions",
	"isolation statement": "set transaction isolation level fails behind begin: say it in begin",
	"current of":          "no where current of",
	"when others":         "it swallows the 40001 that the server would retry by itself: name the conditions, or raise again",
	"caught conflict":     "a handler of 40001 or 40P01 keeps the server from retrying the statement",
	"unguarded setting":   "a yb_ setting fails on PostgreSQL: set_config behind current_setting(..., true)",
	"unguarded notify":    "pg_notify raises 0A000 while yb_enable_listen_notify is off, and notify always can: ask current_setting first",
	"blocking pids":       "pg_blocking_pids does not see row locks there: read ybdetails as well, or ask lock_internal.is_advisory()",
	"transaction id":      "ids of transactions are of one node there, and nothing freezes them: ask lock_internal.is_yugabyte() first",
	"hashed comparison":   "a comparison of rows that begins with a hashed column uses no index: compare that column by =",
	"skip locked join":    "skip locked on two tables fails: name the one with of",
	"not idempotent":      "DDL does not roll back there, so a migration that died must bear being run again",
}

// A File is a migration or a function file.
type File struct{ Path, Text string }

// Check reads the files in order; later ones see the columns of the tables that earlier ones made.
func Check(files []File) []Finding {
	c := &checker{tables: map[string]map[string]string{}, composite: map[string]bool{}, hashed: map[string]bool{}}
	for _, f := range files {
		c.path, c.line = f.Path, 1
		c.script(f.Text, true)
	}
	return c.findings
}

type checker struct {
	path      string
	line      int
	findings  []Finding
	tables    map[string]map[string]string // table, column, type
	composite map[string]bool
	hashed    map[string]bool // columns, of whatever table, that a key begins with, without asc or desc
	body      string          // the text of the function around
	aside     map[string]bool // types that a block before has moved out of the way of their creation
}

// A type that is there already steps aside, under a name that ends with _kept: there is no create type if not exists.
var stepsAside = regexp.MustCompile(`alter type (\S+) rename to \w+_kept`)

func (c *checker) refuse(rule, format string, args ...any) {
	if Rules[rule] == "" {
		panic("no such rule: " + rule)
	}
	f := Finding{c.path, c.line, rule, fmt.Sprintf(format, args...)}
	if !slices.Contains(c.findings, f) {
		c.findings = append(c.findings, f)
	}
}

var leading = regexp.MustCompile(`^(\s+|--[^\n]*)*`)

// script checks a text of SQL statements; top says that they run as they stand, with nothing around them.
func (c *checker) script(text string, top bool) {
	tree, err := pg_query.Parse(text)
	if err != nil {
		c.refuse("syntax", "%v", err)
		return
	}
	for _, raw := range tree.Stmts {
		end := len(text)
		if raw.StmtLen > 0 {
			end = int(raw.StmtLocation + raw.StmtLen)
		}
		statement := text[raw.StmtLocation:end]
		if moved := stepsAside.FindStringSubmatch(statement); moved != nil && top {
			if c.aside == nil {
				c.aside = map[string]bool{}
			}
			c.aside[moved[1]] = true
		}
		skip := len(leading.FindString(statement))
		if top {
			c.line = 1 + strings.Count(text[:int(raw.StmtLocation)+skip], "\n")
			c.idempotent(raw.Stmt)
		}
		c.walk(raw.Stmt.ProtoReflect(), statement[skip:])
	}
}

// walk visits every node below m; statement is the text that m stands in.
func (c *checker) walk(m protoreflect.Message, statement string) {
	c.node(m.Interface(), statement)
	m.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		switch {
		case field.Message() == nil:
		case field.IsList():
			for i := range value.List().Len() {
				c.walk(value.List().Get(i).Message(), statement)
			}
		default:
			c.walk(value.Message(), statement)
		}
		return true
	})
}

func (c *checker) node(node any, statement string) {
	switch n := node.(type) {
	case *pg_query.MergeStmt:
		c.refuse("newer syntax", "merge")
	case *pg_query.JsonObjectConstructor, *pg_query.JsonArrayConstructor, *pg_query.JsonArrayQueryConstructor, *pg_query.JsonObjectAgg,
		*pg_query.JsonArrayAgg, *pg_query.JsonIsPredicate, *pg_query.JsonParseExpr, *pg_query.JsonScalarExpr,
		*pg_query.JsonSerializeExpr, *pg_query.JsonFuncExpr, *pg_query.JsonTable:
		c.refuse("newer syntax", "%T", node)

	case *pg_query.AlterSystemStmt, *pg_query.AlterTableSpaceOptionsStmt, *pg_query.CreateSubscriptionStmt, *pg_query.AlterSubscriptionStmt,
		*pg_query.DropSubscriptionStmt, *pg_query.AlterTSDictionaryStmt, *pg_query.ClusterStmt, *pg_query.CreateConversionStmt,
		*pg_query.CreateTransformStmt, *pg_query.LoadStmt, *pg_query.SecLabelStmt, *pg_query.AlterObjectSchemaStmt:
		c.refuse("unsupported", "%s", strings.TrimPrefix(fmt.Sprintf("%T", node), "*pg_query."))
	case *pg_query.CreateTableAsStmt:
		if n.Query.GetExecuteStmt() != nil {
			c.refuse("unsupported", "create table as execute")
		}
	case *pg_query.AlterTableStmt:
		if n.Objtype == pg_query.ObjectType_OBJECT_TYPE {
			c.refuse("unsupported", "alter type of a composite")
		}
		c.addColumns(n)
	case *pg_query.AlterTableCmd:
		switch n.Subtype {
		case pg_query.AlterTableType_AT_ClusterOn, pg_query.AlterTableType_AT_DropCluster, pg_query.AlterTableType_AT_DisableRule,
			pg_query.AlterTableType_AT_EnableRule, pg_query.AlterTableType_AT_SetOptions, pg_query.AlterTableType_AT_ResetOptions,
			pg_query.AlterTableType_AT_AddInherit:
			c.refuse("unsupported", "alter table ... %s", strings.TrimPrefix(n.Subtype.String(), "AT_"))
		}
	case *pg_query.DropStmt:
		if len(n.Objects) > 1 && n.RemoveType != pg_query.ObjectType_OBJECT_TABLE {
			c.refuse("drop several", "drop of %d objects", len(n.Objects))
		}
		if n.Concurrent {
			c.refuse("unsupported", "drop index concurrently")
		}
		if n.RemoveType == pg_query.ObjectType_OBJECT_TRANSFORM {
			c.refuse("unsupported", "drop transform")
		}
	case *pg_query.CreateSchemaStmt:
		if len(n.SchemaElts) > 0 {
			c.refuse("schema elements", "create schema %s with %d elements", n.Schemaname, len(n.SchemaElts))
		}
	case *pg_query.CreateTrigStmt:
		if n.Isconstraint {
			c.refuse("constraint trigger", "trigger %s", n.Trigname)
		}
		if len(n.TransitionRels) > 0 {
			c.refuse("transition table", "trigger %s", n.Trigname)
		}

	case *pg_query.CompositeTypeStmt:
		c.composite[n.Typevar.Relname] = true
	case *pg_query.CreateStmt:
		c.createTable(n)
	case *pg_query.ColumnDef:
		for i, constraint := range n.Constraints {
			if constraint.GetConstraint().Contype == pg_query.ConstrType_CONSTR_ATTR_DEFERRABLE &&
				n.Constraints[max(0, i-1)].GetConstraint().Contype != pg_query.ConstrType_CONSTR_FOREIGN {
				c.refuse("deferrable", "column %s", n.Colname)
			}
		}
	case *pg_query.Constraint:
		c.constraint(n)
	case *pg_query.IndexStmt:
		c.index(n)

	case *pg_query.ColumnRef:
		if last := n.Fields[len(n.Fields)-1].GetString_(); last != nil &&
			slices.Contains([]string{"ctid", "xmin", "xmax", "cmin", "cmax"}, last.Sval) && !strings.Contains(c.body, "lock_internal.is_yugabyte()") {
			c.refuse("system column", "%s", last.Sval)
		}
	case *pg_query.LockStmt:
		if n.Mode != 1 { // access share
			c.refuse("lock table", "mode %d", n.Mode)
		}
	case *pg_query.CollateClause:
		if name := names(n.Collname); name != "C" && name != "pg_catalog.C" {
			c.refuse("collate", "collate %q", name)
		}
	case *pg_query.CurrentOfExpr:
		c.refuse("current of", "cursor %s", n.CursorName)
	case *pg_query.TransactionStmt:
		switch n.Kind {
		case pg_query.TransactionStmtKind_TRANS_STMT_PREPARE, pg_query.TransactionStmtKind_TRANS_STMT_COMMIT_PREPARED,
			pg_query.TransactionStmtKind_TRANS_STMT_ROLLBACK_PREPARED:
			c.refuse("two-phase commit", "%s", n.Kind)
		}
	case *pg_query.VariableSetStmt:
		if strings.HasPrefix(n.Name, "yb_") {
			c.refuse("unguarded setting", "set %s", n.Name)
		}
		if n.Name == "TRANSACTION" || n.Name == "transaction_isolation" {
			c.refuse("isolation statement", "%s", statement)
		}

	case *pg_query.AlterFunctionStmt:
		c.refuse("alter function", "%s", statement)
	case *pg_query.RenameStmt:
		if n.RenameType == pg_query.ObjectType_OBJECT_FUNCTION || n.RenameType == pg_query.ObjectType_OBJECT_PROCEDURE {
			c.refuse("alter function", "%s", statement)
		}
	case *pg_query.CreateFunctionStmt:
		c.function(n, statement)
	case *pg_query.DoStmt:
		language, body := bodyOf(n.Args)
		c.routine(language, body, statement)

	case *pg_query.NotifyStmt:
		c.refuse("unguarded notify", "notify %s", n.Conditionname)
	case *pg_query.ListenStmt:
		c.refuse("unguarded notify", "listen %s", n.Conditionname)
	case *pg_query.FuncCall:
		c.call(n)
	case *pg_query.A_Expr:
		left, op := n.Lexpr.GetRowExpr(), names(n.Name)
		if left == nil || n.Rexpr.GetRowExpr() == nil || !strings.ContainsAny(op, "<>") || op == "<>" {
			break
		}
		fields := left.Args[0].GetColumnRef().GetFields()
		if len(fields) > 0 && c.hashed[fields[len(fields)-1].GetString_().GetSval()] {
			c.refuse("hashed comparison", "(%s, ...) %s", fields[len(fields)-1].GetString_().GetSval(), op)
		}
	case *pg_query.SelectStmt:
		c.skipLocked(n)
	}
}

func names(list []*pg_query.Node) string {
	var parts []string
	for _, n := range list {
		parts = append(parts, n.GetString_().GetSval())
	}
	return strings.Join(parts, ".")
}

// typeName is a type as a key rule needs it: its last name, with [] for an array.
func typeName(t *pg_query.TypeName) string {
	if t == nil || len(t.Names) == 0 {
		return ""
	}
	name := t.Names[len(t.Names)-1].GetString_().GetSval()
	if len(t.ArrayBounds) > 0 {
		name += "[]"
	}
	return name
}

func (c *checker) badKey(kind string) bool {
	return strings.HasSuffix(kind, "[]") || strings.HasSuffix(kind, "range") || c.composite[kind] || c.tables[kind] != nil ||
		slices.Contains([]string{"json", "jsonb", "interval", "inet", "cidr", "macaddr", "macaddr8", "bit", "varbit", "tsvector", "tsquery",
			"citext", "hstore", "xml", "point", "line", "lseg", "box", "path", "polygon", "circle", "pg_lsn", "txid_snapshot"}, kind)
}

func (c *checker) createTable(n *pg_query.CreateStmt) {
	table := n.Relation.Relname
	columns := map[string]string{}
	var keys []string
	for _, element := range n.TableElts {
		if column := element.GetColumnDef(); column != nil {
			columns[column.Colname] = typeName(column.TypeName)
			for _, constraint := range column.Constraints {
				if isKey(constraint.GetConstraint().Contype) {
					keys = append(keys, column.Colname)
					c.hashed[column.Colname] = true
				}
			}
		} else if constraint := element.GetConstraint(); constraint != nil && isKey(constraint.Contype) {
			c.hashed[constraint.Keys[0].GetString_().Sval] = true
			for _, key := range constraint.Keys {
				keys = append(keys, key.GetString_().Sval)
			}
		}
	}
	if len(n.InhRelations) > 0 && n.Partbound == nil {
		c.refuse("inherits", "table %s", table)
	}
	for _, key := range keys {
		if c.badKey(columns[key]) {
			c.refuse("key type", "%s.%s is %s", table, key, columns[key])
		}
	}
	c.tables[table] = columns
}

func isKey(kind pg_query.ConstrType) bool {
	return kind == pg_query.ConstrType_CONSTR_PRIMARY || kind == pg_query.ConstrType_CONSTR_UNIQUE
}

func (c *checker) addColumns(n *pg_query.AlterTableStmt) {
	columns := c.tables[n.Relation.GetRelname()]
	for _, node := range n.Cmds {
		command := node.GetAlterTableCmd()
		if command == nil {
			continue
		}
		if column := command.Def.GetColumnDef(); column != nil && columns != nil && column.TypeName != nil {
			columns[column.Colname] = typeName(column.TypeName)
		}
		if constraint := command.Def.GetConstraint(); constraint != nil && isKey(constraint.Contype) {
			for _, key := range constraint.Keys {
				if c.badKey(columns[key.GetString_().Sval]) {
					c.refuse("key type", "%s.%s", n.Relation.Relname, key.GetString_().Sval)
				}
			}
		}
	}
}

func (c *checker) constraint(n *pg_query.Constraint) {
	switch {
	case n.Contype == pg_query.ConstrType_CONSTR_EXCLUSION:
		c.refuse("exclude", "constraint %s", n.Conname)
	case n.Contype != pg_query.ConstrType_CONSTR_FOREIGN && n.Deferrable:
		c.refuse("deferrable", "constraint %s", n.Conname)
	case isKey(n.Contype) && len(n.Options) > 0:
		c.refuse("index storage", "constraint %s", n.Conname)
	}
}

func (c *checker) index(n *pg_query.IndexStmt) {
	if n.AccessMethod != "btree" && n.AccessMethod != "gin" {
		c.refuse("access method", "index %s uses %s", n.Idxname, n.AccessMethod)
	}
	if len(n.Options) > 0 {
		c.refuse("index storage", "index %s", n.Idxname)
	}
	if n.AccessMethod == "gin" {
		return
	}
	for i, param := range n.IndexParams {
		element := param.GetIndexElem()
		if i == 0 && element.Ordering == pg_query.SortByDir_SORTBY_DEFAULT &&
			slices.Contains([]string{"timestamptz", "timestamp", "date"}, c.tables[n.Relation.Relname][element.Name]) {
			c.refuse("range index", "index %s starts with %s, without asc or desc", n.Idxname, element.Name)
		}
		if i == 0 && element.Ordering == pg_query.SortByDir_SORTBY_DEFAULT {
			c.hashed[element.Name] = true
		}
		kind := c.tables[n.Relation.Relname][element.Name]
		if cast := element.Expr.GetTypeCast(); cast != nil {
			kind = typeName(cast.TypeName)
		}
		if c.badKey(kind) {
			c.refuse("key type", "index %s has a key of type %s", n.Idxname, kind)
		}
	}
}

// skipLocked refuses for update skip locked over a join that does not say which table it means.
func (c *checker) skipLocked(n *pg_query.SelectStmt) {
	for _, node := range n.LockingClause {
		clause := node.GetLockingClause()
		if clause.WaitPolicy == pg_query.LockWaitPolicy_LockWaitSkip && relations(n.FromClause) > 1 && len(clause.LockedRels) != 1 {
			c.refuse("skip locked join", "for update skip locked over %d tables", relations(n.FromClause))
		}
	}
}

func relations(from []*pg_query.Node) int {
	count := 0
	for _, node := range from {
		switch {
		case node.GetRangeVar() != nil:
			count++
		case node.GetJoinExpr() != nil:
			count += relations([]*pg_query.Node{node.GetJoinExpr().Larg, node.GetJoinExpr().Rarg})
		}
	}
	return count
}

func (c *checker) call(n *pg_query.FuncCall) {
	name := n.Funcname[len(n.Funcname)-1].GetString_().GetSval()
	switch name {
	case "pg_blocking_pids", "pg_safe_snapshot_blocking_pids":
		if !strings.Contains(c.body, "ybdetails") && !strings.Contains(c.body, "lock_internal.is_advisory()") {
			c.refuse("blocking pids", "%s", name)
		}
	case "pg_notify":
		if !strings.Contains(c.body, "yb_enable_listen_notify") && !strings.Contains(c.body, "from lock_internal.must_notify(") {
			c.refuse("unguarded notify", "pg_notify")
		}
	case "pg_current_xact_id", "txid_current":
		if !strings.Contains(c.body, "lock_internal.is_yugabyte()") {
			c.refuse("transaction id", "%s", name)
		}
	case "set_config":
		if len(n.Args) == 0 {
			return
		}
		setting := n.Args[0].GetAConst().GetSval().GetSval()
		if strings.HasPrefix(setting, "yb_") && !strings.Contains(c.body, "current_setting('"+setting+"', true)") {
			c.refuse("unguarded setting", "set_config('%s')", setting)
		}
	}
}

func (c *checker) function(n *pg_query.CreateFunctionStmt, statement string) {
	for _, parameter := range append([]*pg_query.Node{}, n.Parameters...) {
		if t := parameter.GetFunctionParameter().GetArgType(); t.GetPctType() {
			c.refuse("type reference", "parameter %s", parameter.GetFunctionParameter().GetName())
		}
	}
	if n.ReturnType.GetPctType() {
		c.refuse("type reference", "returns")
	}
	language, body := bodyOf(n.Options)
	c.routine(language, body, statement)
}

var rowVariable = regexp.MustCompile(`(?m)^(\s+\w+\s+)(constant\s+)?lock\.\w+(%rowtype)?`)

// bodyOf finds the language and the text in the options of create function or do.
func bodyOf(options []*pg_query.Node) (language, body string) {
	language = "plpgsql"
	for _, option := range options {
		element := option.GetDefElem()
		switch element.Defname {
		case "language":
			language = element.Arg.GetString_().Sval
		case "as":
			if text := element.Arg.GetString_(); text != nil {
				body = text.Sval
			} else if list := element.Arg.GetList(); list != nil && len(list.Items) == 1 {
				body = list.Items[0].GetString_().Sval
			}
		}
	}
	return language, body
}

// routine checks a body; statement is the whole create function or do.
func (c *checker) routine(language, body, statement string) {
	around := c.body
	c.body = body
	defer func() { c.body = around }()
	switch language {
	case "sql":
		if body != "" {
			c.script(body, false)
		}
	case "plpgsql":
		text, err := pg_query.ParsePlPgSqlToJSON(statement)
		if err != nil { // the library takes a variable of a table's type for a scalar
			text, err = pg_query.ParsePlPgSqlToJSON(rowVariable.ReplaceAllString(statement, "${1}record"))
		}
		if err != nil {
			c.refuse("syntax", "PL/pgSQL: %v", err)
			return
		}
		var tree any
		if err := json.Unmarshal([]byte(text), &tree); err != nil {
			c.refuse("syntax", "PL/pgSQL: %v", err)
			return
		}
		c.plpgsql(tree)
	}
}

func (c *checker) plpgsql(tree any) {
	switch n := tree.(type) {
	case []any:
		for _, item := range n {
			c.plpgsql(item)
		}
	case map[string]any:
		for key, value := range n {
			inner, _ := value.(map[string]any)
			switch key {
			case "PLpgSQL_expr":
				c.script(statementOf(inner), false)
			case "PLpgSQL_exception":
				c.handler(inner)
			case "PLpgSQL_stmt_dynexecute", "PLpgSQL_stmt_dynfors":
				c.dynamic(inner["query"])
			case "PLpgSQL_stmt_return_query", "PLpgSQL_stmt_open":
				if inner["dynquery"] != nil {
					c.dynamic(inner["dynquery"])
				}
			}
			c.plpgsql(value)
		}
	}
}

// statementOf makes an expression of PL/pgSQL a statement.
func statementOf(expr map[string]any) string {
	query, _ := expr["query"].(string)
	switch mode, _ := expr["parseMode"].(float64); mode {
	case 2:
		return "select " + query
	case 3, 4, 5:
		_, value, _ := strings.Cut(query, ":=")
		return "select " + value
	}
	return query
}

// handler refuses an exception handler that hides a conflict.
func (c *checker) handler(n map[string]any) {
	conditions, _ := n["conditions"].([]any)
	for _, item := range conditions {
		condition := item.(map[string]any)["PLpgSQL_condition"].(map[string]any)["condname"]
		switch condition {
		case "others":
			if !raisesAgain(n["action"]) {
				c.refuse("when others", "an exception handler for everything")
			}
		case "serialization_failure", "deadlock_detected", "transaction_rollback", "40001", "40P01", "40000":
			c.refuse("caught conflict", "an exception handler for %v", condition)
		}
	}
}

func raisesAgain(action any) bool {
	statements, _ := action.([]any)
	if len(statements) == 0 {
		return false
	}
	last, _ := statements[len(statements)-1].(map[string]any)
	raise, ok := last["PLpgSQL_stmt_raise"].(map[string]any)
	return ok && raise["condname"] == nil && raise["message"] == nil
}

// dynamic checks the text that execute runs, with stand-ins for what is put into it.
func (c *checker) dynamic(query any) {
	holder, _ := query.(map[string]any)
	expr, _ := holder["PLpgSQL_expr"].(map[string]any)
	tree, err := pg_query.Parse(statementOf(expr))
	if err != nil || len(tree.Stmts) != 1 {
		return // reported where the expression is walked
	}
	targets := tree.Stmts[0].Stmt.GetSelectStmt().GetTargetList()
	if len(targets) != 1 {
		return
	}
	text := fold(targets[0].GetResTarget().GetVal())
	if _, err := pg_query.Parse(text); err != nil { // arguments put in at the end
		if called := strings.TrimSuffix(text, standIn) + "()"; called != text {
			if _, err := pg_query.Parse(called); err == nil {
				text = called
			}
		}
	}
	if _, err := pg_query.Parse(text); err != nil || strings.TrimSpace(text) == standIn {
		c.refuse("unreadable", "execute %v", expr["query"])
		return
	}
	c.script(text, false)
}

const standIn = "x"

var placeholder = regexp.MustCompile(`%(\d+\$)?-?\d*([sIL%])`)

// fold works out as much of a text as stands there.
func fold(node *pg_query.Node) string {
	switch {
	case node.GetAConst().GetSval() != nil:
		return node.GetAConst().GetSval().Sval
	case node.GetAExpr() != nil && names(node.GetAExpr().Name) == "||":
		return fold(node.GetAExpr().Lexpr) + fold(node.GetAExpr().Rexpr)
	case node.GetFuncCall() != nil && strings.HasSuffix(names(node.GetFuncCall().Funcname), "format") && len(node.GetFuncCall().Args) > 0:
		return placeholder.ReplaceAllStringFunc(fold(node.GetFuncCall().Args[0]), func(found string) string {
			switch found[len(found)-1] {
			case 'L':
				return "'x'"
			case '%':
				return "%"
			}
			return standIn
		})
	}
	return standIn
}

// idempotent refuses a statement of a migration that fails when it is run again.
func (c *checker) idempotent(node *pg_query.Node) {
	again := func(ok bool, what string) {
		if !ok {
			c.refuse("not idempotent", "%s", what)
		}
	}
	switch n := node.Node.(type) {
	case *pg_query.Node_CreateStmt:
		again(n.CreateStmt.IfNotExists, "create table without if not exists")
	case *pg_query.Node_CreateTableAsStmt:
		again(n.CreateTableAsStmt.IfNotExists, "create table as without if not exists")
	case *pg_query.Node_CreateSchemaStmt:
		again(n.CreateSchemaStmt.IfNotExists, "create schema without if not exists")
	case *pg_query.Node_CreateSeqStmt:
		again(n.CreateSeqStmt.IfNotExists, "create sequence without if not exists")
	case *pg_query.Node_CreateExtensionStmt:
		again(n.CreateExtensionStmt.IfNotExists, "create extension without if not exists")
	case *pg_query.Node_IndexStmt:
		again(n.IndexStmt.IfNotExists, "create index without if not exists")
	case *pg_query.Node_CreateFunctionStmt:
		again(n.CreateFunctionStmt.Replace, "create function without or replace")
	case *pg_query.Node_ViewStmt:
		again(n.ViewStmt.Replace, "create view without or replace")
	case *pg_query.Node_CreateTrigStmt:
		again(n.CreateTrigStmt.Replace, "create trigger without or replace")
	case *pg_query.Node_CreateEnumStmt:
		again(c.aside[names(n.CreateEnumStmt.TypeName)], "create type that is not moved aside before")
	case *pg_query.Node_CompositeTypeStmt, *pg_query.Node_CreateDomainStmt, *pg_query.Node_CreateRoleStmt:
		again(false, "a create without if not exists: guard it in a do block")
	case *pg_query.Node_AlterEnumStmt:
		again(n.AlterEnumStmt.SkipIfNewValExists, "alter type ... add value without if not exists")
	case *pg_query.Node_DropStmt:
		again(n.DropStmt.MissingOk, "drop without if exists")
	case *pg_query.Node_RenameStmt:
		again(false, "a rename: guard it in a do block")
	case *pg_query.Node_InsertStmt:
		again(n.InsertStmt.OnConflictClause != nil, "insert without on conflict")
	case *pg_query.Node_AlterTableStmt:
		for _, item := range n.AlterTableStmt.Cmds {
			command := item.GetAlterTableCmd()
			switch command.Subtype {
			case pg_query.AlterTableType_AT_AddColumn, pg_query.AlterTableType_AT_DropColumn, pg_query.AlterTableType_AT_DropConstraint:
				again(command.MissingOk, "alter table without if (not) exists: "+strings.TrimPrefix(command.Subtype.String(), "AT_"))
			case pg_query.AlterTableType_AT_AddConstraint:
				again(false, "alter table add constraint: guard it in a do block")
			}
		}
	}
}
