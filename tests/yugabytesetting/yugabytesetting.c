/* Defines YugabyteDB's settings on PostgreSQL, so that tests run the branches that ask for them. They change nothing. */
#include "postgres.h"
#include "fmgr.h"
#include "utils/guc.h"

PG_MODULE_MAGIC;

static bool disable_transactional_writes = false;
static bool enable_listen_notify = true;
static bool enable_read_committed_isolation = true;

void _PG_init(void);

void
_PG_init(void)
{
	DefineCustomBoolVariable("yb_disable_transactional_writes", "As on YugabyteDB; without effect here.", NULL,
							 &disable_transactional_writes, false, PGC_USERSET, 0, NULL, NULL, NULL);
	DefineCustomBoolVariable("yb_enable_listen_notify", "As on YugabyteDB; without effect here.", NULL,
							 &enable_listen_notify, true, PGC_USERSET, 0, NULL, NULL, NULL);
	DefineCustomBoolVariable("yb_enable_read_committed_isolation", "As on YugabyteDB; without effect here.", NULL,
							 &enable_read_committed_isolation, true, PGC_USERSET, 0, NULL, NULL, NULL);
	/* The target disguised: clients see it, too. */
	if (GetConfigOption("lock.disguised_as", true, false) != NULL)
		SetConfigOption("server_version", GetConfigOption("lock.disguised_as", true, false), PGC_INTERNAL, PGC_S_OVERRIDE);
}
