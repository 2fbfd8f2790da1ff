/* SPDX-License-Identifier: Apache-2.0 */
/* A new group of the processes that are left, of those that were started again, and of newcomers. They find each other by their
 * rendezvous points and join as the first group did. */
#include "distributed/comm/regroup.h"

#include <stdio.h>
#include <string.h>

#include "distributed/comm/engines.h"
#include "distributed/comm/init_internal.h"
#include "distributed/control/rendezvous.h"
#include "distributed/system/system.h"
#include "tensor/byte_hash.h"
#include "tensor/environment.h"
#include "tensor/memory_internal.h"
#include "tensor/trace.h"

/* How long processes that were found alive may take to come. */
#define JOIN_S 30
/* How long a joiner looks for the job, unless TREK_JOIN_SECONDS sets it; and how many times in a row it may be
 * ignored. */
#define FIND_S 60
#define MOST_IGNORED 5
/* How many groups in a row may end before a joiner is in them. */
#define MOST_LOST 10
/* How long a joiner waits before it asks again, at least, and at most if groups have waited in vain for all to reach it. */
#define ASK_AGAIN_NS 100000000
#define REST_NS 600000000000
/* How long a process waits before it tries once more to listen at the job's address, while nobody does. */
#define ADMIT_AGAIN_NS 100000000

struct trek_regroup {
    trek_rendezvous *rendezvous;
    char token[256], lost[256], come[256];
    char address[256];       /* of the job */
    int port, flat, world;   /* world: the number of processes with which the job began */
    int ranks, groups_lost; /* of a joiner: how many ranks it has, and how many groups with it have ended before it was in them */
    int64_t rest_ns, rest_until_ns; /* of a joiner: how long it leaves the others alone, and until when */
    uint64_t program;
    char engine[16];
    bool nobody_admits;      /* as the group last knew */
    int64_t admit_ns;        /* before then this process does not try once more to admit */
    int n;                   /* of the group that the rendezvous has entered */
    trek_member members[TREK_MAX_RANKS];
};

void trek_regroup_free(trek_regroup **place)
{
    trek_regroup *regroup = place ? *place : NULL;
    if (!regroup)
        return;
    *place = NULL;
    trek_rendezvous_free(&regroup->rendezvous);
    trek_free(regroup);
}

void trek_regroup_leave(trek_regroup *regroup, int64_t done)
{
    trek_kept_error kept;
    trek_error_keep(&kept);
    trek_rendezvous_leave(regroup->rendezvous, done);
    trek_error_clear(); /* those who have not heard of it go on as if this process had died */
    trek_error_put_back(&kept);
}

int64_t trek_regroup_left(const trek_regroup *regroup) { return trek_rendezvous_left(regroup->rendezvous); }

const char *trek_regroup_lost(const trek_regroup *regroup) { return regroup->lost; }
const char *trek_regroup_come(const trek_regroup *regroup) { return regroup->come; }
int trek_regroup_number(const trek_regroup *regroup, int process) { return regroup->members[process].number; }

/* --- beginning --------------------------------------------------------------------------------------------------- */

static trek_status check_engine(const trek_comm *comm)
{
    if (!comm || !comm->control)
        return trek_fail(TREK_ERR_ARGUMENT, "comm_regroup: only the processes of a job can continue without one of them");
    if (comm->origins)
        return trek_fail(TREK_ERR_UNSUPPORTED, "comm_regroup: a group of trek_comm_split cannot continue without one of its "
                                               "processes; the whole job's communicator can");
    if (comm->engine->ends_together)
        return trek_fail(TREK_ERR_UNSUPPORTED,
                         "comm_regroup: a job over MPI cannot continue without one of its processes, since MPI ends with it; "
                         "start it without mpirun, or choose engine \"shared\" or \"gloo\"");
    return TREK_OK;
}

/* Opens the rendezvous at which the others reach this process. */
static trek_status open_rendezvous(trek_regroup *regroup, const trek_comm *comm)
{
    char address[64];
    const trek_control_opts like = trek_control_like(comm->control);
    snprintf(regroup->token, sizeof regroup->token, "%s", like.token);
    snprintf(regroup->address, sizeof regroup->address, "%s", like.address);
    snprintf(regroup->engine, sizeof regroup->engine, "%s", comm->engine->name);
    regroup->port = like.port;
    regroup->flat = like.flat;
    if (!trek_control_own_address(comm->control, address, sizeof address))
        return trek_control_ended(comm->control)
                   ? trek_control_fail(comm->control) /* by whom, too */
                   : trek_fail(TREK_ERR_COMM, "comm_regroup: the control connection of process %d is lost", comm->rank);
    regroup->rendezvous = trek_rendezvous_open(address, regroup->token, trek_comm_init_number(&regroup->world));
    return regroup->rendezvous ? TREK_OK : trek_error_status();
}

/* Lets joiners in at the job's address, if this process can. It need not. */
static void admit(trek_regroup *regroup, int listening)
{
    if (trek_rendezvous_admits(regroup->rendezvous) ||
        trek_rendezvous_admit(regroup->rendezvous, regroup->address, regroup->port, listening, regroup->program,
                              regroup->world) == TREK_OK)
        return;
    trek_log_message(TREK_LOG_LEVEL_DEBUG, "regroup: %s", trek_error());
    trek_error_clear();
}

static trek_status enter(trek_regroup *regroup, int64_t generation, int n)
{
    regroup->n = n;
    return trek_rendezvous_enter(regroup->rendezvous, generation, regroup->members, n);
}

/* Announces to all others where this process's rendezvous is. A process without a rendezvous announces port 0. */
static trek_status exchange_rendezvous(trek_regroup *regroup, trek_comm *comm, trek_status own)
{
    trek_member member = own == TREK_OK ? trek_rendezvous_member(regroup->rendezvous) : (trek_member){ .port = 0 };
    trek_status status = trek_comm_gather_bytes(comm, &member, sizeof member, regroup->members);
    for (int p = 0; p < comm->world && status == TREK_OK && own == TREK_OK; p++)
        if (regroup->members[p].port == 0)
            status = trek_fail(TREK_ERR_PEER, "comm_regroup: process %d has no address at which the others could find it", p);
    return own != TREK_OK ? own : status;
}

/* Nobody leaves before all have entered. So a process that dies after this call dies among processes that can go on
 * without it. If the group ends meanwhile, this process can already go on; its next call reports the end. */
static trek_status await_entered(trek_comm *comm, trek_status own)
{
    bool entered = own == TREK_OK, all[TREK_MAX_RANKS];
    trek_status status = trek_comm_gather_bytes(comm, &entered, sizeof entered, all);
    for (int p = 0; p < comm->world && status == TREK_OK && own == TREK_OK; p++)
        if (!all[p])
            return trek_fail(TREK_ERR_PEER, "comm_regroup: process %d has no memory for the list of the processes", p);
    if (own == TREK_OK && status != TREK_OK && trek_regroup_may(comm)) {
        trek_error_clear();
        status = TREK_OK;
    }
    return own != TREK_OK ? own : status;
}

static trek_status begin(trek_regroup *regroup, trek_comm *comm)
{
    trek_status status = exchange_rendezvous(regroup, comm, open_rendezvous(regroup, comm));
    if (status == TREK_OK || !trek_comm_ended(comm)) {
        if (status == TREK_OK)
            status = enter(regroup, 0, comm->world);
        status = await_entered(comm, status);
    }
    if (status != TREK_OK)
        return status;
    trek_comm_init_begun();
    int listening = trek_control_take_listening(comm->control);
    if (listening)
        admit(regroup, listening);
    return TREK_OK;
}

trek_regroup *trek_regroup_new(trek_comm *comm, uint64_t program)
{
    if (check_engine(comm) != TREK_OK)
        return NULL;
    trek_regroup *regroup = trek_calloc(1, sizeof *regroup);
    if (!regroup) {
        trek_comm_abort(comm, "a process has no memory for its rendezvous"); /* the others wait for its place */
        return NULL;
    }
    regroup->program = program;
    if (begin(regroup, comm) != TREK_OK)
        trek_regroup_free(&regroup);
    return regroup;
}

void trek_regroup_set_program(trek_regroup *regroup, uint64_t program)
{
    regroup->program = program;
    trek_rendezvous_set_program(regroup->rendezvous, program);
}

/* --- the next group ------------------------------------------------------------------------------------------------- */

bool trek_regroup_may(const trek_comm *comm)
{
    if (!comm || !comm->control || !trek_comm_ended(comm) || !trek_control_ended(comm->control))
        return false;
    trek_kept_error kept;
    trek_status why;
    char reason[TREK_ERROR_SIZE];
    trek_error_keep(&kept);
    trek_control_fail(comm->control);
    trek_error_take(&why, reason);
    trek_error_put_back(&kept);
    return why == TREK_ERR_PEER || why == TREK_ERR_TIMEOUT;
}

static trek_control *join(trek_regroup *regroup, const trek_rendezvous_place *place)
{
    return trek_control_join(&(trek_control_opts){ .process = place->process, .processes = place->processes,
                                                   .address = place->address, .port = place->port, .token = regroup->token,
                                                   .join_s = JOIN_S, .flat = regroup->flat, .generation = place->generation,
                                                   .listening = place->listening, .died = trek_rendezvous_died,
                                                   .arg = regroup->rendezvous });
}

static bool is_among(const trek_member *members, int n, int number)
{
    bool found = false;
    for (int k = 0; k < n && !found; k++)
        found = members[k].number == number;
    return found;
}

/* Lists the numbers of the first members that are not among the second. */
static void list_others(const trek_member *first, int n, const trek_member *second, int n_second, char *text, size_t size)
{
    size_t used = 0;
    text[0] = '\0';
    for (int k = 0; k < n; k++)
        if (!is_among(second, n_second, first[k].number) && used + 16 < size)
            used += (size_t)snprintf(text + used, size - used, "%s%d", used ? ", " : "", first[k].number);
}

static void list_changes(trek_regroup *regroup, const trek_member *members, int n)
{
    list_others(regroup->members, regroup->n, members, n, regroup->lost, sizeof regroup->lost);
    list_others(members, n, regroup->members, regroup->n, regroup->come, sizeof regroup->come);
}

/* What processes announce when they have joined. */
typedef struct card {
    trek_member member;
    int32_t admits;
    int32_t unused; /* the first number that no process of the job has had, as far as it knows */
} card;

/* Admits joiners if no process does: the one that did has just died, and the system may not have released its port
 * yet. */
static void admit_soon(trek_regroup *regroup)
{
    for (int k = 0; k < 20 && !trek_rendezvous_admits(regroup->rendezvous); k++) {
        trek_sleep_ns(25000000);
        admit(regroup, 0);
    }
}

static trek_status take_cards(trek_regroup *regroup, const trek_rendezvous_place *place, const card *cards)
{
    trek_member *members = trek_calloc((size_t)place->processes, sizeof *members);
    if (!members)
        return TREK_ERR_MEMORY;
    regroup->nobody_admits = true;
    for (int p = 0; p < place->processes; p++) {
        members[p] = cards[p].member;
        trek_rendezvous_note_unused(regroup->rendezvous, cards[p].unused);
        regroup->nobody_admits = regroup->nobody_admits && !cards[p].admits;
    }
    list_changes(regroup, members, place->processes);
    memcpy(regroup->members, members, (size_t)place->processes * sizeof *members);
    trek_free(members);
    trek_status status = enter(regroup, place->generation, place->processes);
    if (status == TREK_OK && regroup->nobody_admits)
        admit_soon(regroup);
    return status;
}

/* All have joined. They announce who they are, and the group is complete. */
static trek_status settle(trek_regroup *regroup, trek_control *control, const trek_rendezvous_place *place)
{
    admit(regroup, 0);
    card own = { .member = trek_rendezvous_member(regroup->rendezvous),
                 .admits = trek_rendezvous_admits(regroup->rendezvous),
                 .unused = trek_rendezvous_first_unused(regroup->rendezvous) };
    card *cards = trek_calloc((size_t)place->processes, sizeof own);
    trek_status status = cards ? TREK_OK : TREK_ERR_MEMORY;
    if (!cards && control)
        trek_control_end(control, TREK_ERR_MEMORY, "a process has no memory for the list of those who are left");
    if (status == TREK_OK && control)
        status = trek_control_gather(control, &own, sizeof own, cards, (int64_t)JOIN_S * 1000000000);
    else if (status == TREK_OK)
        cards[0] = own;
    trek_rendezvous_settled(regroup->rendezvous);
    if (status == TREK_OK)
        status = take_cards(regroup, place, cards);
    trek_free(cards);
    return status;
}

/* Returns the engine of the last group, or NULL for the best one, if that cannot join all machines which now have some of the
 * processes. */
static const char *engine_for(const trek_regroup *regroup, const trek_control *control)
{
    bool too_local = control && !trek_control_same_machine(control) && trek_engines_is_local(regroup->engine);
    return too_local ? NULL : regroup->engine;
}

/* Returns whether a group has not been made because a process has ended, or because of one that was about to come. */
static bool is_due_to_others(const trek_regroup *regroup, bool belonged)
{
    trek_status why = trek_error_status();
    bool by_joiners = belonged && regroup->come[0] && (why == TREK_ERR_COMM || why == TREK_ERR_UNSUPPORTED);
    return why == TREK_ERR_PEER || why == TREK_ERR_TIMEOUT || by_joiners;
}

/* ended NULL: this process was in no group. *again: a process has died meanwhile. */
static trek_comm *form(trek_regroup *regroup, const trek_comm *ended, const trek_rendezvous_place *place, bool *again)
{
    trek_control *control = place->processes > 1 ? join(regroup, place) : NULL;
    if (place->processes > 1 && !control) {
        trek_rendezvous_settled(regroup->rendezvous);
        *again = trek_error_status() != TREK_ERR_MEMORY && trek_error_status() != TREK_ERR_STATE;
        return NULL;
    }
    trek_status status = settle(regroup, control, place);
    if (status != TREK_OK) {
        *again = status == TREK_ERR_PEER || status == TREK_ERR_TIMEOUT;
        trek_control_free(&control);
        return NULL;
    }
    trek_comm *comm = trek_comm_init_next(control, engine_for(regroup, control), ended);
    *again = !comm && is_due_to_others(regroup, ended != NULL);
    if (comm && comm->control)
        snprintf(regroup->engine, sizeof regroup->engine, "%s", comm->engine->name);
    return comm;
}

trek_comm *trek_regroup_meet(trek_regroup *regroup, const trek_comm *ended, int least)
{
    trek_rendezvous_place place;
    trek_comm *comm = NULL;
    bool again = true;
    for (int round = trek_rendezvous_members(regroup->rendezvous); again && round >= 0;
         round--) { /* each round except the last loses a
                                                                                        * process */
        trek_error_clear();
        again = false;
        if (trek_rendezvous_meet(regroup->rendezvous, least, ended->deadline_ns, &place) == TREK_OK)
            comm = form(regroup, ended, &place, &again);
    }
    return comm;
}

/* --- bytes from one to another -------------------------------------------------------------------------------------- */

trek_supply *trek_regroup_supply(const trek_regroup *regroup, const struct iovec *parts, int n)
{
    const trek_member own = trek_rendezvous_member(regroup->rendezvous);
    return trek_supply_new(own.address, regroup->token, own.number, parts, n);
}

trek_supplier trek_regroup_supplier(const trek_regroup *regroup, int process, int port)
{
    trek_supplier supplier = { .port = port };
    snprintf(supplier.address, sizeof supplier.address, "%s", regroup->members[process].address);
    return supplier;
}

trek_status trek_regroup_fetch(const trek_regroup *regroup, const trek_supply_fetching *fetching)
{
    trek_supply_fetching whole = *fetching;
    whole.token = regroup->token;
    whole.number = trek_rendezvous_member(regroup->rendezvous).number;
    return trek_supply_fetch(&whole);
}

/* --- joiners ------------------------------------------------------------------------------------------------------- */

/* What each process knows about joiners. */
typedef struct join_queue {
    int32_t admits, waiting, closed;
} join_queue;

/* What all must know of a process before others join it. */
typedef struct abilities {
    uint64_t machine;
    uint32_t engines;
} abilities;

/* Names the machine of this process. */
static uint64_t machine_here(void)
{
    char machine[256];
    trek_process_machine(machine, sizeof machine);
    return trek_hash_bytes(TREK_HASH_BEGIN, machine, strlen(machine));
}

/* Broadcasts the list of the process that has it. */
static trek_status share_joiners(trek_comm *comm, trek_joiner *joiners, int n, int source)
{
    return trek_comm_run(comm, (trek_comm_call){ .kind = TREK_COMM_BROADCAST, .dtype = TREK_U8, .root = source,
                                                 .count = (int64_t)n * (int64_t)sizeof *joiners, .in = joiners,
                                                 .out = joiners });
}

/* Joiners go to the process that hosts, so all must know them by then. */
static trek_status meet_informed(trek_comm *comm, trek_status own, join_queue *all)
{
    join_queue informed = { .admits = own == TREK_OK };
    if (own == TREK_ERR_PEER || own == TREK_ERR_TIMEOUT) /* the group has ended */
        return own;
    trek_status status = trek_comm_gather_bytes(comm, &informed, sizeof informed, all);
    for (int p = 0; p < comm->world && status == TREK_OK && own == TREK_OK; p++)
        if (!all[p].admits)
            status = trek_fail(TREK_ERR_MEMORY, "comm_regroup: process %d has no memory for the list of joining processes", p);
    return own != TREK_OK ? own : status;
}

/* Keeps the joiners that fit, which all processes find alike, and tells the others why they do not. ranks: those of the job. */
static void choose_joiners(trek_regroup *regroup, int ranks, const abilities *all, int world, trek_joiner *joiners, int *n)
{
    int kept = 0, room = TREK_MAX_RANKS - ranks;
    uint32_t engines = ~0u;
    bool one_machine = true;
    for (int p = 0; p < world; p++) {
        engines &= all[p].engines;
        one_machine = one_machine && all[p].machine == all[0].machine;
    }
    for (int k = 0; k < *n; k++) {
        const trek_joiner joiner = joiners[k];
        bool same = one_machine && joiner.machine == all[0].machine, joins = trek_engines_join(engines & joiner.engines, same);
        if (!joins || joiner.ranks > room) {
            trek_rendezvous_turn_away(regroup->rendezvous, &joiner, joins ? TREK_RENDEZVOUS_NO_ROOM : TREK_RENDEZVOUS_NO_ENGINE);
            continue;
        }
        room -= joiner.ranks;
        one_machine = same;
        engines &= joiner.engines;
        joiners[kept++] = joiner;
    }
    *n = kept;
}

/* Asks what all can do, and keeps the joiners that fit. */
static trek_status sift_joiners(trek_regroup *regroup, trek_comm *comm, int ranks, trek_joiner *joiners, int *n)
{
    abilities own = { .machine = machine_here(), .engines = trek_engines_here() };
    abilities *all = trek_calloc((size_t)comm->world, sizeof *all);
    if (!all)
        trek_comm_abort(comm, "a process has no memory for the list of joining processes");
    trek_status status = all ? trek_comm_gather_bytes(comm, &own, sizeof own, all) : TREK_ERR_MEMORY;
    if (status == TREK_OK)
        choose_joiners(regroup, ranks, all, comm->world, joiners, n);
    trek_free(all);
    return status;
}

static trek_status find_joiners(trek_regroup *regroup, trek_comm *comm, const trek_regroup_door *door, trek_joiner *joiners,
                                join_queue *all, int *n)
{
    bool closed = door->closed;
    int world = comm->world, source = 0;
    join_queue own = { .admits = trek_rendezvous_admits(regroup->rendezvous),
                  .waiting = trek_rendezvous_waiting(regroup->rendezvous, joiners, TREK_MAX_RANKS),
                  .closed = closed };
    trek_status status = trek_comm_gather_bytes(comm, &own, sizeof own, all);
    regroup->nobody_admits = status == TREK_OK;
    for (int p = 0; p < world && status == TREK_OK; p++) {
        source = all[p].waiting > all[source].waiting ? p : source;
        regroup->nobody_admits = regroup->nobody_admits && !all[p].admits;
        closed = closed || all[p].closed;
    }
    *n = status == TREK_OK && !closed ? all[source].waiting : 0;
    if (*n > 0)
        status = share_joiners(comm, joiners, *n, source);
    if (*n > 0 && status == TREK_OK)
        status = sift_joiners(regroup, comm, door->ranks, joiners, n);
    if (status == TREK_OK)
        status = trek_rendezvous_invite(regroup->rendezvous, joiners, *n);
    return *n > 0 ? meet_informed(comm, status, all) : status;
}

/* Where nobody admits, nobody can wait either, so it is tried here: the system may release the port of a process that has died
 * later than admit_soon waits for it, and this process may be busy for long before it meets the others who are left. */
int trek_regroup_joiners(trek_regroup *regroup, const trek_comm *comm)
{
    if ((regroup->nobody_admits || (comm && trek_comm_ended(comm))) && trek_now_ns() >= regroup->admit_ns) {
        admit(regroup, 0);
        regroup->admit_ns = trek_now_ns() + ADMIT_AGAIN_NS;
    }
    return trek_rendezvous_joiners(regroup->rendezvous);
}

trek_status trek_regroup_invite(trek_regroup *regroup, trek_comm *comm, const trek_regroup_door *door, int *n)
{
    trek_joiner *joiners = trek_calloc(TREK_MAX_RANKS, sizeof *joiners);
    join_queue *all = trek_calloc((size_t)comm->world, sizeof *all);
    *n = 0;
    if (!joiners || !all)
        trek_comm_abort(comm, "a process has no memory for the list of joining processes"); /* the others wait for its part */
    else if (regroup->nobody_admits)
        admit(regroup, 0);
    trek_status status = joiners && all ? find_joiners(regroup, comm, door, joiners, all, n) : TREK_ERR_MEMORY;
    trek_free(joiners);
    trek_free(all);
    return status;
}

/* Returns whether its launcher says that all other processes of the job have ended. */
static bool is_over(void *arg)
{
    bool ended[TREK_MAX_RANKS];
    const trek_launch *launch = arg;
    int n = trek_launch_ended(launch->deaths, ended, launch->processes);
    return n - ended[launch->process] == launch->processes - 1;
}

/* A group has ended before this joiner was in it. If that was because it waited in vain, for so long, somebody may not reach this
 * process, and each group costs the others this time again. So the joiner leaves them alone for as long, and for twice as long
 * each further time. */
static void note_lost(trek_regroup *regroup, int64_t waited_ns)
{
    regroup->groups_lost++;
    if (trek_error_status() != TREK_ERR_TIMEOUT)
        return;
    regroup->rest_ns = regroup->rest_ns ? 2 * regroup->rest_ns : waited_ns;
    if (regroup->rest_ns > REST_NS)
        regroup->rest_ns = REST_NS;
    regroup->rest_until_ns = trek_now_ns() + regroup->rest_ns;
}

/* Waits before it asks again, unless the job ends meanwhile. */
static void rest(const trek_regroup *regroup, trek_launch *launch)
{
    do
        trek_sleep_ns(ASK_AGAIN_NS);
    while (trek_now_ns() < regroup->rest_until_ns && !(launch->deaths >= 0 && is_over(launch)));
}

/* Makes one attempt to join. *came says whether another attempt makes sense. */
static trek_comm *come(trek_regroup *regroup, trek_launch *launch, int64_t until_ns, trek_rendezvous_came *came)
{
    trek_rendezvous_place place = { .process = 0 };
    trek_rendezvous_call call = { .address = regroup->address,
                            .token = regroup->token,
                            .port = regroup->port,
                            .number = launch->newcomer ? -1 : launch->process,
                            .world = launch->processes,
                            .ranks = regroup->ranks,
                            .engines = trek_engines_here(),
                            .machine = machine_here(),
                            .program = regroup->program,
                            .until_ns = until_ns,
                            .over = launch->deaths >= 0 ? is_over : NULL,
                            .arg = launch };
    bool again = false;
    regroup->rendezvous = trek_rendezvous_join(&call, &place, came);
    if (regroup->rendezvous) /* before the group is formed, in which this process may begin to admit others */
        regroup->world = trek_rendezvous_world(regroup->rendezvous);
    int64_t since = trek_now_ns();
    trek_comm *comm = regroup->rendezvous ? form(regroup, NULL, &place, &again) : NULL;
    if (!comm)
        trek_rendezvous_free(&regroup->rendezvous);
    if (!comm && again) {
        note_lost(regroup, trek_now_ns() - since);
        *came = TREK_RENDEZVOUS_LEFT_ALONE;
        trek_error_clear();
    }
    return comm;
}

static trek_status keep_coming(trek_regroup *regroup, trek_launch *launch, trek_comm **comm)
{
    int64_t patience = (int64_t)trek_process_number("TREK_JOIN_SECONDS", 1, 1000000, FIND_S) * 1000000000;
    trek_rendezvous_came came;
    for (int ignored = 0; !*comm && trek_error_status() == TREK_OK && ignored < MOST_IGNORED;) {
        *comm = come(regroup, launch, trek_now_ns() + patience, &came);
        ignored = came == TREK_RENDEZVOUS_IGNORED ? ignored + 1 : 0;
        if (regroup->groups_lost >= MOST_LOST)
            return trek_fail(TREK_ERR_COMM,
                             "comm_regroup: the job has let this process in %d times, and each group has ended before "
                             "it was complete: do all machines reach each other's addresses?",
                             regroup->groups_lost);
        if (!*comm && trek_error_status() == TREK_OK)
            rest(regroup, launch);
    }
    if (!*comm && trek_error_status() == TREK_OK)
        return trek_fail(TREK_ERR_COMM,
                         "comm_regroup: this process is not admitted at %s, port %d: the program that listens there is another "
                         "one, or has just ended",
                         regroup->address, regroup->port);
    return trek_error_status();
}

trek_regroup *trek_regroup_join(uint64_t program, int ranks, trek_comm **comm)
{
    trek_launch launch;
    *comm = NULL;
    trek_regroup *regroup = trek_comm_init_joining(&launch) == TREK_OK ? trek_calloc(1, sizeof *regroup) : NULL;
    if (!regroup)
        return NULL;
    snprintf(regroup->token, sizeof regroup->token, "%s", launch.token);
    snprintf(regroup->address, sizeof regroup->address, "%s", launch.address);
    snprintf(regroup->engine, sizeof regroup->engine, "%s", TREK_COMM_ENGINE_OF_OTHERS);
    regroup->port = launch.port;
    regroup->ranks = ranks;
    regroup->program = program;
    if (keep_coming(regroup, &launch, comm) != TREK_OK)
        trek_regroup_free(&regroup);
    return regroup;
}
