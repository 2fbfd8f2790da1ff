/* SPDX-License-Identifier: Apache-2.0 */
/* Processes that kill themselves. */
#include "tests/distributed/grains/dying.h"

#include <fnmatch.h>
#include <inttypes.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "distributed/comm/comm_internal.h"
#include "distributed/comm/gloo/gloo.h"
#include "distributed/control/control.h"
#include "tensor/trace.h"
#include "tests/support/support.h"
#include "tests/support/unit.h"

static const part *mine;

const char *dying_word(const char *text, const char *name)
{
    size_t length = strlen(name);
    for (const char *at = text; at; at = strchr(at, ',')) {
        at += at != text;
        if (strncmp(at, name, length) == 0)
            return at + length;
    }
    return NULL;
}

int dying_number(const char *text, const char *name, int unset)
{
    const char *at = dying_word(text, name);
    return at ? atoi(at) : unset;
}

static bool name_sign(char *path, size_t size, const char *what, int number)
{
    const char *folder = dying_word(mine->detail, "in=");
    return folder && snprintf(path, size, "%.*s/%s.%d", (int)strcspn(folder, ","), folder, what, number) > 0;
}

void dying_give_sign(const char *what, int number)
{
    char path[256];
    FILE *file = name_sign(path, sizeof path, what, number) ? fopen(path, "w") : NULL;
    if (file)
        fclose(file);
}

bool dying_has_sign(const char *what, int number)
{
    char path[256];
    return name_sign(path, sizeof path, what, number) && access(path, F_OK) == 0;
}

void dying_await_sign(const char *what, int number)
{
    for (double since = 0; !dying_has_sign(what, number);)
        if (!test_wait(&since)) {
            printf("%s.%d has not come\n", what, number);
            _exit(2);
        }
}

/* with=P: when process P is about to die, too. Otherwise it might learn of this death before. */
static void die(void)
{
    int other = dying_number(mine->detail, "with=", -1);
    if (other >= 0) {
        dying_give_sign("ready", mine->process);
        dying_await_sign("ready", other);
    }
    dying_give_sign("dead", mine->process);
    if (dying_word(mine->detail, "as=")) /* nobody need wait for it */
        dying_give_sign("come", dying_number(mine->detail, "turn=", 0));
    kill(getpid(), SIGKILL);
}

static bool has_stopped(pid_t process)
{
    char path[32], text[512] = "";
    snprintf(path, sizeof path, "/proc/%d/stat", (int)process);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, text, sizeof text - 1) : 0;
    if (fd >= 0)
        close(fd);
    const char *name_ends = n > 0 ? strrchr(text, ')') : NULL;
    return name_ends && strncmp(name_ends, ") T", 3) == 0;
}

/* Stands still until a child wakes it, which waits by poll(): that is not stretched as sleeps are (tests/support/sleeps.c). It is
 * woken once: a later signal could come while the leak sanitizer looks at a process that ends. Who stands still for longer than
 * is drawn here may be left behind by the others, and rightly so. */
static void stand_still(int ms)
{
    pid_t own = getpid(), child = fork();
    if (child == 0) {
        while (getppid() == own && !has_stopped(own))
            poll(NULL, 0, 1);
        poll(NULL, 0, ms);
        if (getppid() == own)
            kill(own, SIGCONT);
        _exit(0);
    }
    if (child > 0)
        kill(own, SIGSTOP);
}

/* Returns whether it is that moment of this name. */
static bool is_moment(const char *at, const char *name, atomic_int *times)
{
    size_t length = strcspn(at, ":");
    bool same = at[length] == ':' && strlen(name) == length;
    for (size_t k = 0; k < length && same; k++)
        same = at[k] == (name[k] == ' ' ? '_' : name[k]);
    return same && atomic_fetch_add(times, 1) == atoi(at + length + 1);
}

/* How many grains a process gets is a matter of speed. Where it does not get enough of them, it dies in its third step. */
static void enter_sync(void)
{
    static atomic_int times;
    bool counts_grains = dying_word(mine->detail, "at=grain:") || dying_word(mine->detail, "at=sum_grain:") ||
        dying_word(mine->detail, "at=backward:");
    if (atomic_fetch_add(&times, 1) == 2 && counts_grains)
        die();
}

void dying_enter(const char *name)
{
    static atomic_int times, stops;
    if (!mine)
        return;
    if (strcmp(name, "sync") == 0)
        enter_sync();
    const char *at = dying_word(mine->detail, "at="), *still = dying_word(mine->detail, "stops=");
    if (at && is_moment(at, name, &times))
        die();
    if (still && is_moment(still, name, &stops))
        stand_still(atoi(strchr(strchr(still, ':') + 1, ':') + 1));
}

static void span(const char *name, int rank, int64_t start, int64_t end, int64_t detail, void *arg)
{
}

static void event(const char *name, int rank, int64_t at, double value, void *arg)
{
}

/* The first group's engine, whose calls are counted from the first one that comes in training. */
static trek_comm_engine counted;
static trek_status (*run_really)(trek_comm *comm, const trek_comm_call *call);
static atomic_bool trains;
static int calls;

/* The call has ended for the others, and one of them has died, before this process knows of either. */
static trek_status learn_late(const trek_comm *comm, trek_status status)
{
    int dead = dying_number(mine->detail, "of-process=", -1);
    if (dead >= 0)
        dying_await_sign("dead", dead);
    for (double since = 0; !(trek_control_ended(comm->control) && trek_comm_ended(comm)) && test_wait(&since);)
        continue; /* the control thread tells the communicator after the channel */
    return status == TREK_OK ? trek_control_fail(comm->control) : status;
}

static trek_status run_counted(trek_comm *comm, const trek_comm_call *call)
{
    int number = atomic_load(&trains) ? calls++ : -1;
    if (number >= 0 && number == dying_number(mine->detail, "before=", -1))
        die();
    trek_status status = run_really(comm, call);
    if (number >= 0 && number == dying_number(mine->detail, "after=", -1))
        die();
    if (number >= 0 && number == dying_number(mine->detail, "late=", -1))
        return learn_late(comm, status);
    return status;
}

static void on_grain(const char *name)
{
    if (strcmp(name, "grain") == 0)
        atomic_store(&trains, true);
    dying_enter(name);
}

static void count_calls(trek_comm *comm)
{
    counted = *comm->engine;
    run_really = counted.run;
    counted.run = run_counted;
    comm->engine = &counted;
}

void dying_begin(const part *me, trek_comm *comm)
{
    static const trek_trace_sink sink = { .span = span, .event = event, .enter = on_grain };
    mine = me;
    if (comm)
        count_calls(comm);
    atomic_store(&trek_trace_now, &sink);
}

void dying_count_calls(void) { atomic_store(&trains, true); }
void dying_end(void) { atomic_store(&trek_trace_now, NULL); }
int dying_calls(void) { return calls; }

void dying_set_threads(const part *me)
{
    const char *threads = dying_word(me->detail, "threads=");
    char number[2] = { threads ? threads[0] : 0 };
    if (threads)
        setenv("TREK_THREADS", number, 1);
}

trek_comm *dying_join(const part *me, int processes)
{
    dying_set_threads(me);
    trek_comm *comm = trek_comm_init(&(trek_comm_opts){ .engine = strstr(me->detail, "gloo") ? "gloo" : "shared",
                                                        .rank = me->process, .world_size = processes, .address = me->address,
                                                        .port = me->port, .token = "sesame", .deadline_s = 30 });
    if (!comm)
        printf("%s\n", trek_error());
    return comm;
}

int dying_level(const char *text) { return dying_number(text, "divided=", 0); }

grain_run dying_run(const char *text)
{
    return (grain_run){ .model = dying_number(text, "model=", MLP), .grain = dying_number(text, "grain=", 3),
                        .ranks = dying_number(text, "ranks=", 1), .separate = strstr(text, "separate") || strstr(text, "divided"),
                        .sharded = strstr(text, "sharded") != NULL, .divided = dying_level(text),
                        .budget = (int64_t)dying_number(text, "budget=", 0) << 10, .batch = dying_number(text, "batch=", 20),
                        .steps = dying_number(text, "steps=", 8),
                        .optimizer = dying_number(text, "optimizer=", 0), .accumulate = dying_number(text, "accumulate=", 0),
                        .clipped = strstr(text, "clipped") != NULL, .scaled = dying_word(text, "overflow=") != NULL,
                        .autocast = strstr(text, "bf16") ? TREK_BF16 : TREK_F32, .slow = strstr(text, "slow") != NULL,
                        .freezes = strstr(text, "freezes") != NULL, .evaluates = strstr(text, "evaluates") != NULL,
                        .writes = strstr(text, "writes") != NULL,
                        .overflow = dying_number(text, "overflow=", 0),
                        .unrecorded = true, .whole = true, .place = dying_number(text, "as=", 0),
                        .min_processes = dying_number(text, "least=", 1) };
}

int dying_report(const grain_result *result, trek_comm *comm)
{
    if (result)
        printf("digest %016" PRIx64 " ranks %d joined %d calls %d.\n", result->digest, result->world, (int)result->joined,
               dying_calls());
    else
        printf("%s: %s\n", trek_status_name(trek_error_status()), trek_error());
    trek_error_clear();
    trek_comm_free(&comm);
    return result ? 0 : 1;
}

/* --- what is expected ------------------------------------------------------------------------------------- */

static void append(char *text, size_t size, const char *word)
{
    size_t length = strlen(text);
    snprintf(text + length, size - length, "%s", word);
}

void dying_draw_ways(uint64_t *seed, char *detail, size_t size)
{
    char why[256], threads[24];
    append(detail, size, test_draw(seed, 3) ? "" : ",bf16");
    append(detail, size, test_draw(seed, 2) ? "" : ",slow");
    bool gloo = test_draw(seed, 3) == 0;
    append(detail, size, gloo && trek_comm_gloo_there(why, sizeof why) ? ",gloo" : "");
    snprintf(threads, sizeof threads, ",threads=%d", 1 + (int)test_draw(seed, 3));
    append(detail, size, threads);
}

void dying_draw_stop(uint64_t *seed, char *text, size_t size)
{
    static const char *const spans[] = { "grain", "sync", "reduce", "optimizer" };
    char word[48];
    int span = (int)test_draw(seed, 4), time = (int)test_draw(seed, 4), ms = 1 + (int)test_draw(seed, 400);
    snprintf(word, sizeof word, ",stops=%s:%d:%d", spans[span], time, ms);
    append(text, size, test_draw(seed, 3) ? "" : word);
}

uint64_t dying_digest(const char *detail, bool last_only)
{
    static grain_result result;
    grain_run alone = dying_run(detail);
    alone.ranks = 1;
    alone.separate = alone.slow = false;
    alone.min_processes = 0;
    alone.last_only = last_only;
    if (!grain_train(&alone, &result))
        fail_msg("%s: %s", detail, trek_error());
    return result.digest;
}

const role *dying_roles(int n, const char *const *deaths)
{
    static role roles[PROCESSES];
    for (int p = 0; p < n; p++)
        roles[p] = (role){ .text = deaths[p] ? deaths[p] : "-", .dies = deaths[p] != NULL };
    roles[n] = (role){ .text = NULL };
    return roles;
}

void dying_play(world *w, const char *detail, const role *roles)
{
    char text[512], folder[] = "/tmp/trek-dying-XXXXXX";
    int n = 0;
    assert_non_null(mkdtemp(folder));
    while (roles[n].text)
        n++;
    processes_init(w, n);
    for (int p = 0; p < n; p++) {
        snprintf(text, sizeof text, "%s,in=%s,%s", roles[p].text, folder, detail);
        processes_start(w, p, "train", text);
    }
    processes_finish(w, -1);
    assert_int_equal(test_remove(folder), 0);
}

static bool ends_as(int code, const char *text, const role *role, const char *wanted)
{
    bool joins = dying_word(role->text, "as=") != NULL;
    if (role->dies && (code == -SIGKILL || !role->may_live))
        return code == -SIGKILL;
    if (role->may_lose && strstr(text, "no other copy; load a checkpoint"))
        return code == 1;
    if (role->fails)
        return code == 1 && fnmatch(role->fails, text, 0) == 0;
    return code == 0 && strstr(text, wanted) && joins == !strstr(text, " joined 0 ");
}

int dying_expect(const char *detail, const role *roles, uint64_t digest, int left)
{
    static world w;
    char wanted[64];
    dying_play(&w, detail, roles);
    snprintf(wanted, sizeof wanted, left < 0 ? "digest %016" PRIx64 " ranks" : "digest %016" PRIx64 " ranks %d joined", digest,
             left);
    for (int p = 0; p < w.n; p++) {
        if (ends_as(w.code[p], w.text[p], &roles[p], wanted))
            continue;
        processes_print(&w);
        fail_msg("%s: process %d (%s) ended with %d, not with \"%s\"", detail, p, roles[p].text, w.code[p],
                 roles[p].fails ? roles[p].fails : wanted);
    }
    const char *calls_made = strstr(w.text[0], "calls ");
    return calls_made ? atoi(calls_made + 6) : 0;
}

void dying_leave_too_few(void)
{
    const role roles[] = { REPORTS("-", "TREK_ERR_PEER: *process 1*.min_processes is 3"), DIES("at=grain:4"),
                           REPORTS("-", "TREK_ERR_PEER: *process 1*.min_processes is 3"), { 0 } };
    dying_expect("model=0,least=3", roles, 0, -1);
}
