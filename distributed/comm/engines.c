/* SPDX-License-Identifier: Apache-2.0 */
/* The table of the engines among processes. The processes tell each other which engines they can use, and try those that
 * all have, in the order of the table. */
#include "distributed/comm/engines.h"

#include <stdio.h>
#include <string.h>

#include "distributed/comm/gloo/gloo.h"
#include "distributed/comm/init_internal.h"
#include "distributed/comm/mpi/mpi.h"
#include "distributed/comm/shared/shared.h"
#include "tensor/memory_internal.h"

typedef struct engine_row {
    const char *name;
    bool one_machine; /* it joins processes of one machine only */
    /* Returns whether this process can use it; otherwise `why` gets the reason. NULL: every process can. */
    bool (*there)(char *why, size_t size);
    trek_status (*make)(trek_control *control, trek_comm **comm);
    trek_status (*make_part)(trek_control *control, trek_comm **comm); /* among some of the job's processes, in any order */
    const char *advice;                                                /* what makes it available */
} engine_row;

/* In order of preference, which is the same on all processes. */
static const engine_row rows[] = {
    { "shared", true, NULL, trek_comm_shared_new, trek_comm_shared_new, NULL },
    { "mpi", false, trek_comm_mpi_there, trek_comm_mpi_new, trek_comm_mpi_new_part,
      "install MPI (libopenmpi-dev openmpi-bin) and start them with mpirun or srun" },
    { "gloo", false, trek_comm_gloo_there, trek_comm_gloo_new, trek_comm_gloo_new,
      "install Gloo on all (Debian: libgloo-dev g++) and build trek again" },
};
enum { ENGINES = sizeof rows / sizeof *rows };

/* What each process tells the others before all choose an engine. */
typedef struct process_card {
    char wanted[16];
    char machine[128];
    uint32_t can;     /* bits: the rows that it can use */
    char cannot[512]; /* the other rows, each with its reason */
} process_card;

trek_status trek_engines_check(const char *name)
{
    char names[128] = "";
    size_t length = 0;
    for (int e = 0; e < ENGINES; e++) {
        if (strcmp(name, rows[e].name) == 0)
            return TREK_OK;
        length += (size_t)snprintf(names + length, sizeof names - length, "\"%s\", ", rows[e].name);
    }
    return trek_fail(TREK_ERR_ARGUMENT, "comm_init: .engine: \"%s\"; must be %sor NULL", name, names);
}

uint32_t trek_engines_here(void)
{
    uint32_t here = 0;
    for (int e = 0; e < ENGINES; e++) {
        char why[256];
        if (!rows[e].there || rows[e].there(why, sizeof why))
            here |= 1u << e;
    }
    return here;
}

bool trek_engines_join(uint32_t engines, bool one_machine)
{
    for (int e = 0; e < ENGINES; e++)
        if ((engines >> e & 1) && (one_machine || !rows[e].one_machine))
            return true;
    return false;
}

bool trek_engines_is_local(const char *name)
{
    for (int e = 0; e < ENGINES; e++)
        if (strcmp(rows[e].name, name) == 0)
            return rows[e].one_machine;
    return false;
}

/* --- which engines all have ------------------------------------------------------------------------------------------ */

static void fill_card(process_card *card, const trek_control *control, const char *wanted)
{
    size_t length = 0;
    snprintf(card->wanted, sizeof card->wanted, "%s", wanted ? wanted : "");
    snprintf(card->machine, sizeof card->machine, "%s", trek_control_machine(control));
    for (int e = 0; e < ENGINES; e++) {
        char why[256] = "";
        if (!rows[e].there || rows[e].there(why, sizeof why))
            card->can |= 1u << e;
        else if (length < sizeof card->cannot)
            length += (size_t)snprintf(card->cannot + length, sizeof card->cannot - length, "%s%s: %s", length ? "; " : "",
                                       rows[e].name, why);
    }
}

static trek_status compare_wishes(const process_card *cards, int n)
{
    for (int p = 1; p < n; p++)
        if (strcmp(cards[p].wanted, cards[0].wanted) != 0 && strcmp(cards[p].wanted, TREK_COMM_ENGINE_OF_OTHERS) != 0)
            return trek_fail(TREK_ERR_ARGUMENT,
                             "comm_init: .engine: the processes want different engines: process 0 \"%s\", process %d \"%s\"; "
                             "they must name the same",
                             cards[0].wanted, p, cards[p].wanted);
    return TREK_OK;
}

/* Returns the cards of all processes, to be freed. */
static process_card *exchange_cards(trek_control *control, const char *wanted, int64_t limit_ns)
{
    int n = trek_control_processes(control);
    process_card own = { 0 }, *cards = trek_calloc((size_t)n, sizeof *cards);
    if (!cards) {
        trek_control_end(control, TREK_ERR_MEMORY, "a process has no memory to join the group");
        return NULL;
    }
    fill_card(&own, control, wanted);
    if (trek_control_gather(control, &own, sizeof own, cards, limit_ns) == TREK_OK && compare_wishes(cards, n) == TREK_OK)
        return cards;
    trek_free(cards);
    return NULL;
}

/* Lists the rows to try. Returns their number. */
static int list_rows(const trek_control *control, const process_card *cards, int *list)
{
    int n = trek_control_processes(control), count = 0;
    uint32_t all = ~0u;
    for (int p = 0; p < n; p++)
        all &= cards[p].can;
    for (int e = 0; e < ENGINES; e++)
        if (strcmp(cards[0].wanted, rows[e].name) == 0) {
            list[0] = e;
            return 1;
        }
    for (int e = 0; e < ENGINES; e++)
        if ((all >> e & 1) && (!rows[e].one_machine || trek_control_same_machine(control)))
            list[count++] = e;
    return count;
}

/* --- making one ------------------------------------------------------------------------------------------------------- */

/* The status that counts: the first error, but UNSUPPORTED only if no process has another one. */
static trek_status join_statuses(const int32_t *all, int n, int *process)
{
    trek_status status = TREK_OK;
    for (int p = 0; p < n; p++)
        if (all[p] != TREK_OK && (status == TREK_OK || (status == TREK_ERR_UNSUPPORTED && all[p] != TREK_ERR_UNSUPPORTED))) {
            status = (trek_status)all[p];
            *process = p;
        }
    return status;
}

/* Makes the engine if it works in all processes. Fails with UNSUPPORTED if it does not; another engine may. */
static trek_status make_engine(trek_control *control, int e, bool part, int64_t limit_ns, trek_comm **comm)
{
    int32_t all[TREK_MAX_RANKS];
    int process = 0;
    char message[TREK_ERROR_SIZE] = "";
    trek_status own = trek_forked ? TREK_ERR_STATE : (part ? rows[e].make_part : rows[e].make)(control, comm), taken = own;
    if (own != TREK_OK)
        trek_error_take(&taken, message);
    int32_t mine = (int32_t)own;
    if (trek_control_gather(control, &mine, sizeof mine, all, limit_ns) != TREK_OK) {
        trek_comm_free(comm);
        if (own != TREK_OK && own != TREK_ERR_PEER) {
            trek_error_clear();
            trek_fail(own, "%s", message);
        }
        return trek_error_status();
    }
    trek_status status = join_statuses(all, trek_control_processes(control), &process);
    if (status == TREK_OK)
        return TREK_OK;
    trek_comm_free(comm);
    return own != TREK_OK ? trek_fail(own, "%s", message)
                          : trek_fail(status, "comm_init: .engine: \"%s\" does not work in process %d: %s", rows[e].name, process,
                                      trek_status_description(status));
}

static void find_places(const trek_control *control, const process_card *cards, trek_engine_places *places)
{
    int n = trek_control_processes(control), self = trek_control_process(control);
    *places = (trek_engine_places){ 0 };
    for (int p = 0; p < n; p++) {
        bool seen = false;
        for (int before = 0; before < p && !seen; before++)
            seen = strcmp(cards[p].machine, cards[before].machine) == 0;
        places->machines += !seen;
        if (strcmp(cards[p].machine, cards[self].machine) == 0) {
            places->local += p < self;
            places->locals++;
        }
    }
}

/* Names a process that lacks an engine. If shared memory was tried, it has already said why it does not work. */
static void fail_without_engine(const process_card *cards, int n, int machines)
{
    char before[TREK_ERROR_SIZE] = "", advice[256] = "";
    size_t length = 0;
    trek_status status = trek_error_status();
    if (status != TREK_OK)
        trek_error_take(&status, before);
    int without = 0;
    while (without < n - 1 && !cards[without].cannot[0])
        without++;
    for (int e = ENGINES - 1; e >= 0; e--)
        if (rows[e].advice && length < sizeof advice)
            length += (size_t)snprintf(advice + length, sizeof advice - length, "%s%s", length ? ", or " : "", rows[e].advice);
    trek_fail(TREK_ERR_UNSUPPORTED,
              "comm_init: %d processes on %d machine%s have no way to exchange data: %s. Process %d: %.400s%s%.300s", n, machines,
              machines > 1 ? "s" : "", advice, without, cards[without].cannot, before[0] ? "; shared: " : "", before);
}

trek_comm *trek_engines_pick(trek_control *control, const char *wanted, bool part, int64_t limit_ns, trek_engine_places *places)
{
    process_card *cards = exchange_cards(control, wanted, limit_ns);
    trek_comm *comm = NULL;
    if (!cards)
        return NULL;
    int list[ENGINES], count = list_rows(control, cards, list);
    trek_status status = TREK_ERR_UNSUPPORTED;
    find_places(control, cards, places);
    for (int i = 0; i < count && status == TREK_ERR_UNSUPPORTED; i++) {
        trek_error_clear();
        status = make_engine(control, list[i], part, limit_ns, &comm);
    }
    if (status == TREK_ERR_UNSUPPORTED && !wanted)
        fail_without_engine(cards, trek_control_processes(control), places->machines);
    trek_free(cards);
    return comm;
}
