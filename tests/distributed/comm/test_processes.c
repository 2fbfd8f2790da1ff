/* SPDX-License-Identifier: Apache-2.0 */
/* Communicators between real processes of one machine: results, and every way in which one of them can fail the others. */
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "distributed/comm/comm_internal.h"
#include "distributed/comm/gloo/gloo.h"
#include "distributed/comm/gloo/mesh.h"
#include "distributed/comm/regroup.h"
#include "distributed/control/control.h"
#include "distributed/system/socket.h"
#include "tensor/tensor_internal.h"
#include "tensor/trace.h"
#include "tests/distributed/comm/exchanged.h"
#include "tests/distributed/comm/groups.h"
#include "tests/support/processes.h"
#include "tests/support/support.h"
#include "tests/support/unit.h"

/* --- parts -------------------------------------------------------------------------------------------------------- */

enum { DEADLINE_S = 3 }; /* longer than anybody is kept from the machine by others */

static trek_comm *join(const part *me, double deadline) { return exchanged_join(me, processes_engine(), deadline); }

static int play_results(const part *me)
{
    trek_comm *comm = join(me, 0), *again = comm ? join(me, 0) : NULL;
    static const int64_t counts[] = { 0, 1, 7, 1000, 1025, 4099, 70001, 300000 };
    /* The last takes many pieces of shared memory. Gloo's are large: test_sizes. */
    size_t n = sizeof counts / sizeof *counts - (strcmp(processes_engine(), "gloo") == 0);
    bool good = comm && again == comm && trek_comm_rank(comm) == me->process && trek_comm_world_size(comm) == me->processes;
    for (size_t k = 0; good && k < n; k++)
        good = exchanged_reduces(comm, counts[k]) && exchanged_moves(comm, counts[k]);
    good = good && exchanged_in_order(comm, 1000) && exchanged_in_order(comm, 3000) && exchanged_in_order(comm, 700001);
    uint32_t state = (uint32_t)me->process + 17;
    int calls = strcmp(processes_engine(), "gloo") == 0 && !test_long() ? 15 : 60; /* Gloo's take much of the machine */
    for (int i = 0; good && i < calls; i++) { /* now one is late, now another */
        state = state * 1664525u + 1013904223u;
        if (state >> 30 == 0)
            processes_pause((int)(state >> 24 & 7));
        good = exchanged_reduces(comm, 1 + i * 5);
    }
    trek_comm_free(&again);
    printf("parent %d\n", good ? trek_control_parent(comm->control) : -2);
    good = good && trek_comm_barrier(comm) == TREK_OK; /* the first handle still serves */
    trek_comm_free(&comm);
    printf("%s %s\n", good ? "good" : "bad", trek_error());
    return good ? 0 : 1;
}

/* Reduces until something fails. "detail" says what this process does at call 20. */
static void misbehave(const part *me, trek_comm *comm)
{
    if (strcmp(me->detail, "kill") == 0)
        kill(getpid(), SIGKILL);
    else if (strcmp(me->detail, "kill-saving") == 0) {
        trek_comm_say(comm, "save");
        processes_await_go(); /* until it is killed, when the others have heard that */
    } else if (strcmp(me->detail, "stop") == 0)
        kill(getpid(), SIGSTOP);
    else if (strcmp(me->detail, "exit") == 0)
        exit(0);
    else if (strcmp(me->detail, "leave") == 0) {
        trek_comm_free(&comm);
        processes_pause(500);
        exit(0);
    } else if (strcmp(me->detail, "sleep") == 0)
        while (!trek_comm_ended(comm))
            processes_pause(10);
    else if (strcmp(me->detail, "abort") == 0)
        trek_comm_abort(comm, "no more data");
    else if (strcmp(me->detail, "save") == 0) {
        trek_comm_say(comm, "save");
        processes_pause(DEADLINE_S * 1500);
        trek_comm_say(comm, NULL);
    }
}

/* "sees-1": says so when it has heard that process 1 saves. */
static void *watch_for_save(void *arg)
{
    trek_comm *comm = arg;
    char phase[32] = "";
    int64_t silent, since;
    for (; strcmp(phase, "save") != 0 && !trek_comm_ended(comm); processes_pause(5))
        trek_control_peer(comm->control, 1, phase, sizeof phase, &silent, &since);
    printf("has heard\n");
    return NULL;
}

static int play_until_failure(const part *me)
{
    if (strcmp(me->detail, "kill-joining") == 0) { /* dies between joining and settling on an engine */
        trek_control_join(&(trek_control_opts){ .process = me->process,
                                                .processes = me->processes,
                                                .address = me->address,
                                                .port = me->port,
                                                .token = "of this test alone" });
        kill(getpid(), SIGKILL);
    }
    bool slow = strcmp(me->detail, "save") == 0 || strcmp(me->detail, "calm") == 0 || strcmp(me->detail, "sleep") == 0;
    trek_comm *comm = join(me, slow ? DEADLINE_S : 60);
    trek_status status = comm ? TREK_OK : trek_error_status();
    pthread_t watcher;
    bool untouched = true,
         watches = comm && strcmp(me->detail, "sees-1") == 0 && pthread_create(&watcher, NULL, watch_for_save, comm) == 0;
    if (comm)
        trek_control_say(comm->control, "backward", NULL);
    for (int i = 1; status == TREK_OK && i <= 40; i++) {
        if (i == 20)
            misbehave(me, comm);
        trek_tensor *tensor = exchanged_numbers(me->process, i == 20 && strcmp(me->detail, "count") == 0 ? 999 : 20000, TREK_F32);
        trek_tensor *before = exchanged_numbers(me->process, tensor->numel, TREK_F32);
        status =
            i == 20 && strcmp(me->detail, "kind") == 0 ? trek_comm_barrier(comm)
            : trek_comm_all_reduce(comm, tensor, TREK_REDUCTION_SUM);
        /* who is still in call 19 when the group ends is cut short in the middle of it; call 20 moves nothing */
        untouched = status == TREK_OK || i < 20 || test_same_bits(tensor, before);
        trek_tensor_release(tensor);
        trek_tensor_release(before);
    }
    printf("%s: %s%s\n", trek_status_name(status), trek_error(), untouched ? "" : " (touched)");
    if (comm && status != TREK_OK) {
        trek_error_clear();
        printf("later %s\n", trek_comm_barrier(comm) == status ? "same" : "other");
    }
    if (watches)
        pthread_join(watcher, NULL);
    trek_comm_free(&comm);
    return status == TREK_OK ? 0 : 1;
}

/* Several calls under way at once, of which the caller takes none to an end. */
static bool check_started(trek_comm *comm)
{
    enum { CALLS = 12, COUNT = 5000 };
    int world = trek_comm_world_size(comm);
    trek_tensor *tensors[CALLS];
    bool good = true;
    for (int k = 0; k < CALLS; k++)
        tensors[k] = exchanged_numbers(trek_comm_rank(comm), COUNT - k * 400, TREK_F32);
    for (int k = 0; good && k < CALLS; k++) {
        void *data = trek_tensor_data(tensors[k]);
        good = trek_comm_start(comm, (trek_comm_call){ .kind = TREK_COMM_ALL_REDUCE, .op = TREK_REDUCTION_SUM, .dtype = TREK_F32,
                                                       .count = COUNT - k * 400,
                                                       .in = data, .out = data }) == TREK_OK;
    }
    good = good && trek_comm_finish(comm) == TREK_OK;
    for (int k = 0; k < CALLS; k++) {
        good = good && exchanged_same(tensors[k], 0, COUNT - k * 400, world, TREK_REDUCTION_SUM, "started");
        trek_tensor_release(tensors[k]);
    }
    return good;
}

/* The next call ends the group: before that, the last one has ended on all. */
static void await_all(void)
{
    printf("so far\n");
    processes_await_go();
}

/* Takes them there. */
static void bring_all(const world *w)
{
    for (int p = 0; p < w->n; p++)
        processes_await(w, p, "so far\n");
    for (int p = 0; p < w->n; p++)
        processes_go(w, p);
}

/* So many that they meet over the control channel; the last call differs in size, or in kind. */
static int play_many(const part *me)
{
    static const int64_t counts[] = { 1, 130 }; /* others: play_results */
    trek_comm *comm = join(me, 30);
    bool good = comm != NULL;
    for (size_t k = test_short(); good && k < sizeof counts / sizeof *counts; k++)
        good = exchanged_reduces(comm, counts[k]) && exchanged_moves(comm, counts[k]);
    for (int i = 0; good && i < 40; i += test_short() ? 20 : 5)
        good = exchanged_in_order(comm, (uint32_t)(60 + i));
    good = good && exchanged_in_order(comm, 1024) && exchanged_in_order(comm, 3000) && check_started(comm);
    printf("%s %s\n", good ? "good" : "bad", trek_error());
    trek_tensor *tensor = exchanged_numbers(me->process, 20 + (me->process == 1), TREK_F32);
    await_all();
    if (good) {
        trek_status status = me->process == 1 && strcmp(me->detail, "kind") == 0 ? trek_comm_barrier(comm)
                                                                                  : trek_comm_all_reduce(comm, tensor,
                                                                                                         TREK_REDUCTION_SUM);
        printf("%s: %s\n", trek_status_name(status), trek_error());
    }
    trek_tensor_release(tensor);
    trek_comm_free(&comm);
    return good ? 0 : 1;
}

/* Gloo in pieces of a few elements, and as in a large world, in which ranks meet by a reduction; the last call differs. */
static int play_sizes(const part *me)
{
    static const int64_t counts[] = { 0, 1, 65, 260 };
    trek_comm_gloo_set_sizes(512, atoi(me->detail));
    trek_comm *comm = join(me, 60);
    bool good = comm != NULL;
    for (size_t k = 0; good && k < sizeof counts / sizeof *counts; k++)
        good = exchanged_reduces(comm, counts[k]) && exchanged_moves(comm, counts[k]);
    trek_comm_gloo_set_sizes(0, 0);
    good = good && check_started(comm);
    printf("%s %s\n", good ? "good" : "bad", trek_error());
    trek_tensor *tensor = exchanged_numbers(me->process, 2000 + (me->process == 1), TREK_F32);
    await_all();
    if (good) {
        trek_status status = trek_comm_all_reduce(comm, tensor, TREK_REDUCTION_SUM);
        printf("%s: %s\n", trek_status_name(status), trek_error());
    }
    trek_tensor_release(tensor);
    trek_comm_free(&comm);
    return good ? 0 : 1;
}

/* Processes that do not see each other's shared memory count as on machines of their own. "apart": which there is Gloo for;
 * "without": for which there is nothing. 9: this is not allowed here. */
static int play_apart(const part *me)
{
    const char *path = getenv("TREK_PLUGIN_PATH");
    if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("tmpfs", "/dev/shm", "tmpfs", 0, "size=1m") != 0)
        return 9;
    if (strcmp(me->detail, "without") == 0 && (!path || mount("tmpfs", path, "tmpfs", 0, "size=1m") != 0)) /* over the plug-in */
        return 9;
    if (strcmp(me->detail, "lo") == 0 || strcmp(me->detail, "nosuch0") == 0)
        setenv("TREK_GLOO_INTERFACE", me->detail, 1);
    trek_comm *comm = exchanged_join(me, NULL, 60);
    bool good = comm && trek_comm_barrier(comm) == TREK_OK;
    printf("%s\n", comm ? comm->engine->name : "none");
    trek_comm_free(&comm);
    return good ? 0 : 1;
}

/* What the processes settle on: "any" stands for no wish. */
static int play_choice(const part *me)
{
    trek_comm *comm = exchanged_join(me, strcmp(me->detail, "any") == 0 ? NULL : me->detail, 60);
    bool good = comm && trek_comm_barrier(comm) == TREK_OK;
    printf("%s %s %s\n", comm ? comm->engine->name : "none", trek_status_name(trek_error_status()), trek_error());
    trek_comm_free(&comm);
    return good ? 0 : 1;
}

/* One group of the job after the other; process 0 takes its time to leave each. */
static int play_again(const part *me)
{
    bool good = true;
    for (int k = 0; k < 6 && good; k++) {
        trek_comm *comm = join(me, 60);
        good = comm && trek_comm_barrier(comm) == TREK_OK;
        if (me->process == 0)
            processes_pause(k == 2 ? 300 : 5);
        trek_comm_free(&comm);
    }
    printf("%s %s\n", good ? "good" : "bad", trek_error());
    return good ? 0 : 1;
}

/* Who does not know the job's token comes to where process 0 waits for data, and does all that it can think of. */
static int play_a_stranger(const trek_mesh_card *card, int *open)
{
    char why[256];
    trek_hmac_key wrong;
    trek_seal seal = { .state = 0 };
    trek_identity own = { .secret = &wrong, .role = TREK_ROLE_DATA, .process = 2 };
    int n = 0;
    trek_hmac_key_of("wrong", 5, &wrong);
    for (int k = 0; k < 100; k++) { /* more than have a place */
        int fd = trek_socket_connect(card->address, card->port, trek_clock_ns() + 5000000000, NULL, NULL, why, sizeof why);
        char junk[200];
        memset(junk, k, sizeof junk);
        struct iovec part = { junk, k % 4 == 1 ? sizeof junk : 0 };
        if (k % 4 == 2)
            trek_seal_call(&seal, &own, fd); /* and it does not prove itself */
        trek_socket_send(fd, &part, 1);
        if (k % 4 == 3)
            trek_socket_close(fd);
        else
            open[n++] = fd;
    }
    return n;
}

/* Connections for data, as Gloo gets them. "strangers": some come first; "false": in the place of process 1 somebody else
 * listens. */
static int play_mesh(const part *me)
{
    trek_control_opts opts = { .process = me->process, .processes = me->processes, .address = me->address, .port = me->port,
                               .token = "a token of many bytes", .join_s = 20 };
    trek_control *control = trek_control_join(&opts);
    trek_mesh_card own = { .address = "127.0.0.1" }, cards[PROCESSES];
    int listening = -1, elsewhere = -1, port = 0, sockets[PROCESSES], open[100], n = 0;
    if (!control || trek_socket_listen(own.address, 0, &listening, &port) != TREK_OK)
        return 9;
    own.port = port;
    if (strcmp(me->detail, "false") == 0 && trek_socket_listen(own.address, 0, &elsewhere, &own.port) != TREK_OK)
        return 9;
    trek_status status = trek_control_gather(control, &own, sizeof own, cards, 0);
    if (status == TREK_OK && strcmp(me->detail, "strangers") == 0)
        n = play_a_stranger(&cards[0], open);
    if (status == TREK_OK)
        status = trek_mesh_connect(control, listening, cards, 8000000000, sockets);
    bool good = status == TREK_OK;
    for (int r = 0; good && r < me->processes; r++) {
        struct iovec part = { &own.port, sizeof own.port };
        good = r == me->process || trek_socket_send(sockets[r], &part, 1) == sizeof own.port;
    }
    for (int r = 0; good && r < me->processes; r++) { /* it is whom it should be */
        int32_t heard = 0;
        struct pollfd wait = { .fd = sockets[r], .events = POLLIN };
        good =
            r == me->process || (poll(&wait, 1, -1) == 1 &&
                                 trek_socket_receive(sockets[r], &heard, sizeof heard) == sizeof heard && heard == cards[r].port);
    }
    while (!good && !trek_control_ended(control)) /* process 0 tells the others why */
        processes_pause(5);
    printf("%s %s %s\n", good ? "good" : "bad", trek_status_name(status), trek_error());
    for (int r = 0; status == TREK_OK && r < me->processes; r++)
        trek_socket_close(sockets[r]);
    for (int k = 0; k < n; k++)
        trek_socket_close(open[k]);
    trek_socket_close(elsewhere);
    trek_socket_close(listening);
    trek_control_free(&control);
    return good ? 0 : 1;
}

/* With "files=12" open at most, or with files of "bytes=2048" at most. */
static int play_limited(const part *me)
{
    bool files = strncmp(me->detail, "files=", 6) == 0;
    rlim_t most = (rlim_t)atoi(me->detail + 6);
    setrlimit(files ? RLIMIT_NOFILE : RLIMIT_FSIZE, &(struct rlimit){ .rlim_cur = most, .rlim_max = most });
    trek_comm *comm = exchanged_join(me, NULL, 20); /* for so long a process waits for one that had too little to begin */
    printf("%s %s\n", comm ? "joined" : "refused", trek_error());
    trek_comm_free(&comm);
    return 0;
}

/* Allocation number `detail` of this process fails, and the next one; 0: none does. */
static int play_memory(const part *me)
{
    setenv("TREK_CACHE", "off", 1);
    test_allocator_use();
    int64_t blocks = test_memory.blocks;
    test_memory.fail_count = 2;
    test_allocator_restart(atoi(me->detail));
    trek_comm *comm = join(me, 8);
    float data[1000] = { 0 };
    trek_status status =
        comm ? trek_comm_run(
                   comm,
                   (trek_comm_call){ .kind = TREK_COMM_ALL_REDUCE, .op = TREK_REDUCTION_SUM, .dtype = TREK_F32, .count = 1000,
                                     .in = data, .out = data })
             : trek_error_status();
    printf("%s: %s; %lld calls\n", trek_status_name(status), trek_error(), (long long)test_memory.calls);
    test_allocator_restart(0);
    trek_comm_free(&comm);
    printf("left %lld\n", (long long)(test_memory.blocks - blocks));
    return status == TREK_OK ? 0 : 1;
}

static int play_groups(const part *me)
{
    trek_comm *comm = join(me, 60);
    bool good = comm && groups_are_right(comm, 7, 3);
    trek_comm *group = good ? trek_comm_split(comm, 0, 0) : NULL;
    good = group && !trek_regroup_new(group, 0) && trek_error_status() == TREK_ERR_UNSUPPORTED;
    trek_error_clear();
    trek_comm_free(&group);
    trek_comm_free(&comm);
    printf("%s %s\n", good ? "good" : "bad", trek_error());
    return good ? 0 : 1;
}

/* Processes 0 and 2 in one group, 3 and 1 in the other, in which process 1 dies: the first goes on. */
static int play_group_dies(const part *me)
{
    trek_comm *comm = join(me, 30), *group = comm ? trek_comm_split(comm, me->process % 2, -me->process) : NULL;
    trek_status status = group ? TREK_OK : trek_error_status();
    for (int i = 0; status == TREK_OK && i < 100; i++) {
        if (i == 10 && me->process == 1)
            kill(getpid(), SIGKILL);
        trek_tensor *tensor = exchanged_numbers(trek_comm_rank(group), 5000, TREK_F64);
        status = trek_comm_all_reduce(group, tensor, TREK_REDUCTION_SUM);
        if (status == TREK_OK && !exchanged_same(tensor, 0, 5000, 2, TREK_REDUCTION_SUM, "group"))
            status = TREK_ERR_STATE;
        trek_tensor_release(tensor);
        processes_pause(10);
    }
    printf("%s: %s\n", trek_status_name(status), trek_error());
    trek_error_clear();
    trek_comm_free(&comm);
    trek_comm_free(&group);
    return status == TREK_OK ? 0 : 1;
}

static const processes_role roles[] = {
    { "groups", play_groups }, { "group-dies", play_group_dies }, { "memory", play_memory }, { "choice", play_choice },
    { "again", play_again }, { "mesh", play_mesh }, { "limited", play_limited }, { "results", play_results },
    { "sizes", play_sizes }, { "apart", play_apart }, { "many", play_many },
    { "fail", play_until_failure }, { "large", exchanged_play_large },
};

/* --- tests -------------------------------------------------------------------------------------------------------- */

static void test_results(void **state)
{
    static const int sizes[] = { 2, 3, 5 };
    for (int k = 0; k < 3; k++) {
        static world w;
        if (sizes[k] == 5)
            setenv("TREK_CONTROL_TREE_ABOVE", "2", 1);
        processes_run_all(&w, sizes[k], "results", "", -1, NULL);
        for (int p = 0; p < w.n; p++)
            WANT(&w, w.code[p] == 0 && strstr(w.text[p], "good"));
        WANT(&w, strstr(w.text[w.n - 1], sizes[k] == 5 ? "parent 3\n" : "parent 0\n"));
    }
    unsetenv("TREK_CONTROL_TREE_ABOVE");
}

static void test_groups(void **state)
{
    for (int n = 2; n <= 5; n += 3) {
        static world w;
        processes_run_all(&w, n, "groups", "", -1, NULL);
        for (int p = 0; p < w.n; p++)
            WANT(&w, w.code[p] == 0 && strstr(w.text[p], "good"));
    }
}

static void test_group_dies(void **state)
{
    static world w;
    processes_run_all(&w, 4, "group-dies", "", -1, NULL);
    WANT(&w, w.code[0] == 0 && w.code[2] == 0);
    WANT(&w, w.code[3] == 1 && strstr(w.text[3], "TREK_ERR_PEER: ") && strstr(w.text[3], "process 1 died"));
    WANT(&w, strstr(w.text[3], "are ranks 3, 1 of the communicator that was split") != NULL);
}

/* Every process but the victim has an error of that status whose text contains `named`. */
typedef struct failure {
    int n, victim;
    const char *detail, *others, *status, *named;
    bool victim_too;
} failure;

static void check_failure_of(const failure *f, const world *w, int p)
{
    char name[128];
    const char *error = strstr(w->text[p], "TREK_ERR_");
    snprintf(name, sizeof name, f->named, f->victim);
    WANT(w, w->code[p] == 1);
    WANT(w, error && strncmp(error, f->status, strlen(f->status)) == 0);
    WANT(w, strstr(w->text[p], name) != NULL);
    WANT(w, strstr(w->text[p], "later same") != NULL || strstr(w->text[p], "join TREK_ERR_") != NULL);
    WANT(w, strstr(w->text[p], "touched") == NULL);
}

/* Several worlds at once, as most of them only wait. */
static void check_failures(const failure *failures, int count)
{
    static world worlds[4];
    for (int k = 0; k < count; k++)
        processes_start_all(&worlds[k], failures[k].n, "fail", failures[k].others, failures[k].victim, failures[k].detail);
    for (int k = 0; k < count; k++) {
        const failure *f = &failures[k];
        world *w = &worlds[k];
        bool stopped = strcmp(f->detail, "stop") == 0, saving = strcmp(f->detail, "kill-saving") == 0;
        for (int p = 0; p < f->n && saving; p++)
            WANT(w, p == f->victim || processes_await(w, p, "has heard\n"));
        if (saving)
            processes_kill(w, f->victim);
        processes_finish(w, stopped ? f->victim : -1);
        if (stopped)
            processes_kill(w, f->victim);
    }
    for (int k = 0; k < count; k++) {
        const failure *f = &failures[k];
        const world *w = &worlds[k];
        for (int p = 0; p < f->n; p++)
            if (p != f->victim || f->victim_too)
                check_failure_of(f, w, p);
        if (f->victim == 0 || strcmp(f->detail, "leave") == 0 || strcmp(f->detail, "kill-joining") == 0)
            continue;
        /* the table is written once, by process 0, and shows the phase */
        WANT(w, strstr(w->text[0], "error:   process 1") && strstr(w->text[0], "in phase \"backward\""));
        for (int p = 1; p < f->n; p++)
            WANT(w, p == f->victim || strstr(w->text[p], "error:   process") == NULL);
    }
}

static void test_kill(void **state)
{
    check_failures((failure[]){ { 3, 2, "kill", "", "TREK_ERR_PEER", "process %d died", false },
                                { 2, 0, "kill", "", "TREK_ERR_PEER", "process %d died", false },
                                { 3, 1, "kill-saving", "sees-1", "TREK_ERR_PEER",
                                  "process %d died: its connection was closed unexpectedly; it was in phase \"save\"", false },
                                { 3, 2, "kill-joining", "", "TREK_ERR_PEER", "process %d died", false } },
                   4);
}

static void test_stop(void **state)
{
    check_failures((failure[]){ { 3, 1, "stop", "", "TREK_ERR_PEER", "process %d has not been heard of", false },
                                { 3, 0, "stop", "", "TREK_ERR_PEER", "process %d has not been heard of", false } }, 2);
}

static void test_exit(void **state)
{
    check_failures((failure[]){
        { 5, 3, "exit", "", "TREK_ERR_PEER", "process %d has left: it exited in phase \"backward\"", false },
        { 3, 1, "leave", "", "TREK_ERR_PEER", "%d has left", false } }, 2);
}

static void test_mismatch(void **state)
{
    check_failures((failure[]){
        { 3, 2, "count", "", "TREK_ERR_COMM", "rank %d's call 20 is all_reduce(sum, f32, 999 elements)", true },
        { 2, 1, "kind", "", "TREK_ERR_COMM", "rank %d's call 20 is barrier", true } }, 2);
}

static void test_deadline_and_abort(void **state)
{
    check_failures((failure[]){ { 3, 2, "sleep", "calm", "TREK_ERR_TIMEOUT", "%d did not come within 3 s", true },
                                { 3, 1, "abort", "", "TREK_ERR_CANCELLED", "aborted through rank %d: no more data", true } },
                   2);
}

/* One saves for longer than the deadline, and says so. */
static void test_long_phase(void **state)
{
    static world worlds[2];
    for (int victim = 0; victim < 2; victim++)
        processes_start_all(&worlds[victim], 3, "fail", "calm", victim, "save");
    for (int victim = 0; victim < 2; victim++) {
        world *w = &worlds[victim];
        processes_finish(w, -1);
        for (int p = 0; p < 3; p++)
            WANT(w, w->code[p] == 0 && strstr(w->text[p], "TREK_OK"));
    }
}

static void test_death_in_a_call(void **state)
{
    static world w;
    processes_run_all(&w, 3, "large", "", 1, "kill");
    WANT(&w, w.code[1] == -SIGKILL);
    for (int p = 0; p < 3; p += 2)
        WANT(&w, w.code[p] == 1 && strstr(w.text[p], "TREK_ERR_PEER: process 1 died"));
}

static void test_choice(void **state)
{
    static world any, differ;
    processes_start_all(&any, 3, "choice", "any", -1, NULL);
    processes_start_all(&differ, 3, "choice", "gloo", 2, "shared");
    processes_finish(&any, -1);
    processes_finish(&differ, -1);
    for (int p = 0; p < 3; p++) {
        WANT(&any, any.code[p] == 0 && strncmp(any.text[p], "shared ", 7) == 0 && !strstr(any.text[p], "warning"));
        WANT(&differ, differ.code[p] == 1 &&
                          strstr(differ.text[p], "TREK_ERR_ARGUMENT comm_init: .engine: the processes want different engines") &&
                          strstr(differ.text[p], "process 0 \"gloo\", process 2 \"shared\""));
    }
}

static void test_again(void **state)
{
    static world w;
    for (int n = 2; n <= 4; n += 2) {
        processes_run_all(&w, n, "again", "", -1, NULL);
        for (int p = 0; p < n; p++)
            WANT(&w, w.code[p] == 0 && strstr(w.text[p], "good"));
    }
}

/* Who has too little is told which limit it is. */
static void test_limits(void **state)
{
    enum { LEAST = 4, MOST = 20 };
    static world worlds[MOST + 1];
    int refused = 0;
    if (strcmp(processes_engine(), "gloo") == 0) /* they choose the engine themselves */
        skip();
    for (int files = LEAST; files <= MOST; files++) {
        char detail[32];
        snprintf(detail, sizeof detail, files == LEAST ? "bytes=2048" : "files=%d", files);
        processes_start_all(&worlds[files], 2, "limited", detail, -1, NULL);
    }
    for (int files = LEAST; files <= MOST; files++) {
        world *w = &worlds[files];
        processes_finish(w, -1);
        bool named = false, joined = strstr(w->text[0], "joined ") && strstr(w->text[1], "joined ");
        for (int p = 0; p < 2; p++)
            named = named || strstr(w->text[p], files == LEAST ? "ulimit -f is 2)" : "ulimit -n is");
        WANT(w, joined || named);
        refused += !joined;
    }
    assert_true(refused > 3);
}

static void test_sizes(void **state)
{
    if (strcmp(processes_engine(), "gloo") != 0)
        skip();
    static world w;
    for (int n = 2; n <= 5; n += 1 + (n == 3))
        for (int direct = 1; direct <= (n == 3 ? 32 : 1); direct += 31) {
            processes_start_all(&w, n, "sizes", direct == 1 ? "1" : "32", -1, NULL);
            bring_all(&w);
            processes_finish(&w, -1);
            for (int p = 0; p < n; p++)
                WANT(&w, w.code[p] == 0 && strstr(w.text[p], "good") &&
                             strstr(w.text[p], "TREK_ERR_COMM: the ranks' calls differ: rank 0's call") &&
                             strstr(w.text[p], "rank 1's call") && strstr(w.text[p], "all_reduce(sum, f32, 2001 elements)"));
        }
}

/* Small sums in the order of the ranks, whatever their number; who dies in the midst of a tree, or comes with another call. */
static void test_many(void **state)
{
    if (strcmp(processes_engine(), "gloo") != 0)
        skip();
    static world w;
    for (int n = 17; n <= 19; n += 2) {
        bool kind = n == 19;
        processes_start_all(&w, n, "many", kind ? "kind" : "", -1, NULL);
        bring_all(&w);
        processes_finish(&w, -1);
        for (int p = 0; p < n; p++)
            WANT(&w, w.code[p] == 0 && strstr(w.text[p], "good") &&
                 strstr(w.text[p], "TREK_ERR_COMM: the ranks' calls differ: rank") &&
                         strstr(w.text[p], "rank 1's call") &&
                         strstr(w.text[p], kind ? "is barrier" : "is all_reduce(sum, f32, 21 elements)"));
    }
    check_failures(
        (failure[]){ { 18, 4, "kill", "", "TREK_ERR_PEER", "process %d died", false },
                     { 18, 5, "exit", "", "TREK_ERR_PEER", "process %d has left: it exited in phase \"backward\"", false } },
        2);
    check_failures(
        (failure[]){ { 18, 5, "count", "", "TREK_ERR_COMM", "rank %d's call 20 is all_reduce(sum, f32, 999 elements)", true },
                     { 18, 4, "sleep", "calm", "TREK_ERR_TIMEOUT", "%d did not come within 3 s", true } },
        2);
}

/* Strangers where data are to come are no ranks, and end nothing; who listens in a process's place is not taken for it. */
static void test_strangers(void **state)
{
    if (strcmp(processes_engine(), "gloo") != 0)
        skip();
    static world w[2];
    processes_start_all(&w[0], 4, "mesh", "", 3, "strangers");
    processes_start_all(&w[1], 3, "mesh", "", 1, "false");
    processes_finish(&w[0], -1);
    processes_finish(&w[1], -1);
    for (int p = 0; p < 4; p++)
        WANT(&w[0], w[0].code[p] == 0 && strstr(w[0].text[p], "good"));
    for (int p = 1; p < 3; p++) /* whichever of both says it first */
        WANT(&w[1], w[1].code[p] == 1 && (strstr(w[1].text[p], "TREK_ERR_TIMEOUT process 1 has no connection for data with "
                                                               "process 2, at 127.0.0.1:") ||
                                          strstr(w[1].text[p], "TREK_ERR_TIMEOUT process 2 has no connection for data with "
                                                               "process 1, at 127.0.0.1:")));
}

/* Without a word: shared memory on one machine, else Gloo, else an error that says what to install. */
static void test_apart(void **state)
{
    if (strcmp(processes_engine(), "gloo") != 0)
        skip();
    static world w[4];
    static const char *const details[] = { "apart", "without", "lo", "nosuch0" };
    for (int k = 0; k < 4; k++)
        processes_start_all(&w[k], 3, "apart", details[k], -1, NULL);
    for (int k = 0; k < 4; k++)
        processes_finish(&w[k], -1);
    if (w[0].code[0] == 9) {
        fprintf(stderr, "skipped: this system does not let the test make mount name spaces\n");
        skip();
    }
    for (int p = 0; p < 3; p++) {
        WANT(&w[0], w[0].code[p] == 0 && strstr(w[0].text[p], "gloo"));
        WANT(&w[1], w[1].code[p] == 1 && strstr(w[1].text[p], "TREK_ERR_UNSUPPORTED: comm_init: 3 processes on 3 machines") &&
                        strstr(w[1].text[p], "libgloo-dev") && strstr(w[1].text[p], "libopenmpi-dev"));
        WANT(&w[2], w[2].code[p] == 0 && strstr(w[2].text[p], "gloo"));
        WANT(&w[3],
             w[3].code[p] == 1 &&
                 strstr(w[3].text[p],
                        "TREK_ERR_ARGUMENT: comm_init: TREK_GLOO_INTERFACE=nosuch0: this machine has no such network interface"));
    }
}

/* A process has no memory at any point of joining and of its first call: all fail, or none; nobody hangs or leaks. */
static void test_no_memory(void **state)
{
    enum { POINTS = 20 };
    static world worlds[POINTS];
    int failed = 0, fine = 0;
    for (int k = 0; k < POINTS; k++) {
        char detail[8];
        snprintf(detail, sizeof detail, "%d", 1 + k);
        processes_start_all(&worlds[k], 2, "memory", "0", k % 2, detail);
    }
    for (int k = 0; k < POINTS; k++) {
        world *w = &worlds[k];
        processes_finish(w, -1);
        for (int p = 0; p < 2; p++)
            WANT(w, (w->code[p] == 0 || w->code[p] == 1) && strstr(w->text[p], "left 0"));
        WANT(w, w->code[0] == w->code[1]);
        failed += w->code[0] == 1;
        fine += w->code[0] == 0;
    }
    printf("%d failed, %d did not\n", failed, fine);
    WANT(&worlds[0], failed >= 6);
}

int main(void)
{
    part me;
    if (processes_part(&me))
        return processes_play(&me, roles, sizeof roles / sizeof *roles);
    char why[256];
    if (strcmp(processes_engine(), "gloo") == 0 && !trek_comm_gloo_there(why, sizeof why)) {
        printf("skipped: %s\n", why);
        return 77;
    }
    alarm(900); /* several hundred processes are started, beside others */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_results),    cmocka_unit_test(test_kill),
        cmocka_unit_test(test_stop),       cmocka_unit_test(test_exit),
        cmocka_unit_test(test_mismatch),   cmocka_unit_test(test_deadline_and_abort),
        cmocka_unit_test(test_long_phase), cmocka_unit_test(test_death_in_a_call),
        cmocka_unit_test(test_sizes),      cmocka_unit_test(test_apart),
        cmocka_unit_test(test_choice),     cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_many),       cmocka_unit_test(test_again),
        cmocka_unit_test(test_limits),     cmocka_unit_test(test_strangers),
        cmocka_unit_test(test_groups),     cmocka_unit_test(test_group_dies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
