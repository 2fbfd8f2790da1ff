/* SPDX-License-Identifier: Apache-2.0 */
/* The control channel between real processes: joining, strangers, gathers, deaths, who is waited for. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "distributed/control/control_internal.h"
#include "distributed/control/tree.h"
#include "tests/support/processes.h"
#include "tests/support/unit.h"

static int report(const char *what, trek_status status)
{
    printf("%s %s: %s\n", what, trek_status_name(status), trek_error());
    return status == TREK_OK ? 0 : 1;
}

/* One process has this deadline, when the others have come but one; they have a minute. So it does not matter how long a busy
 * machine keeps them from coming. */
enum { DEADLINE_MS = 3000 };
#define A_MINUTE INT64_C(60000000000)

/* --- parts -------------------------------------------------------------------------------------------------------- */

static trek_control *join(const part *me, double seconds)
{
    trek_control_opts opts = { .process = me->process, .processes = me->processes, .address = me->address, .port = me->port,
                               .token = "sesame", .join_s = seconds };
    if (strcmp(me->detail, "token") == 0)
        opts.token = "sesamE";
    if (strcmp(me->detail, "world") == 0)
        opts.processes++;
    if (strcmp(me->detail, "late") == 0)
        processes_pause(1500);
    if (strcmp(me->detail, "port") == 0)
        opts.port++;
    if (strcmp(me->detail, "small-tree") == 0 || strcmp(me->role, "fall") == 0)
        opts.flat = 2;
    return trek_control_join(&opts);
}

/* Gathers of all sizes, now one late and now another. */
static int play_gather(const part *me)
{
    static const size_t sizes[] = { 0, 1, 24, 1000, 70000, 1 << 20 };
    trek_control *control = join(me, 20);
    bool good = control && trek_control_process(control) == me->process && trek_control_processes(control) == me->processes &&
                trek_control_same_machine(control);
    unsigned char *mine = malloc(1 << 20), *all = malloc((size_t)me->processes << 20);
    uint32_t random = (uint32_t)me->process * 77 + 1;
    for (int i = 0; good && i < 300; i++) {
        size_t bytes = sizes[i % (i < 30 ? 6 : 4)];
        memset(mine, me->process * 50 + i % 50, bytes);
        random = random * 1664525u + 1013904223u;
        if (random >> 29 == 0)
            processes_pause((int)(random >> 24 & 15));
        good = trek_control_gather(control, mine, bytes, all, 0) == TREK_OK;
        for (size_t k = 0; good && k < bytes * (size_t)me->processes; k++)
            good = all[k] == (unsigned char)((int)(k / (bytes ? bytes : 1)) * 50 + i % 50);
    }
    trek_control_free(&control);
    good = good && control == NULL;
    free(mine);
    free(all);
    printf("%s %s\n", good ? "good" : "bad", trek_error());
    return good ? 0 : 1;
}

static int play_join(const part *me)
{
    double seconds = strcmp(me->detail, "short") == 0 ? 4 : 60;
    trek_control *control = join(me, seconds);
    int mine = me->process, all[PROCESSES];
    trek_status status = control ? trek_control_gather(control, &mine, sizeof mine, all, 0) : trek_error_status();
    for (int p = 0; status == TREK_OK && p < me->processes; p++)
        status = all[p] == p ? TREK_OK : TREK_ERR_COMM;
    int code = report("joined", status);
    trek_control_free(&control);
    return code;
}

static int play_differ(const part *me)
{
    trek_control *control = join(me, 60);
    if (!control)
        return report("join", trek_error_status());
    char mine[32] = "", all[32 * PROCESSES];
    int code = report("gather", trek_control_gather(control, mine, strcmp(me->detail, "more") == 0 ? 32 : 16, all, 0));
    trek_control_free(&control);
    return code;
}

/* Says that the process is about to gather. The last one waits until all others but one have said so. Returns its deadline. */
static int64_t come_last(trek_control *control, const part *me, bool last)
{
    trek_control_say(control, "about to gather", NULL);
    for (int there = 0; last && there < me->processes - 2 && !trek_control_ended(control); processes_pause(10)) {
        there = 0;
        for (int p = 0; p < me->processes; p++) {
            char phase[32];
            int64_t silent, since;
            trek_control_peer(control, p, phase, sizeof phase, &silent, &since);
            there += p != me->process && strcmp(phase, "about to gather") == 0;
        }
    }
    return last ? DEADLINE_MS * INT64_C(1000000) : A_MINUTE;
}

/* Comes to nothing before the group has ended. */
static void stay_away(const trek_control *control)
{
    while (!trek_control_ended(control))
        processes_pause(10);
}

/* "comes" comes to the gather when the others have given up; "comes-saving" when their deadline has passed, and says why. Which
 * of them the number in the others' detail is. */
static int play_late(const part *me)
{
    trek_control *control = join(me, 60);
    if (!control)
        return report("join", trek_error_status());
    int mine = 0, all[PROCESSES], other = (me->process + 1) % me->processes;
    trek_control_say(control, "forward", NULL);
    trek_control_gather(control, &mine, sizeof mine, all, 0);
    if (strcmp(me->detail, "comes") == 0)
        stay_away(control);
    if (strcmp(me->detail, "comes-saving") == 0) {
        trek_control_say_long(control, "save");
        processes_pause(DEADLINE_MS * 3 / 2);
        trek_control_say(control, NULL, NULL);
    }
    bool comes = strncmp(me->detail, "comes", 5) == 0;
    int64_t deadline = comes ? A_MINUTE : come_last(control, me, me->detail[0] != '0' + other);
    int code = report("gather", trek_control_gather(control, &mine, sizeof mine, all, deadline));
    if (code == 0) { /* what is known of the others, when they have said it */
        char phase[32] = "", table[4096] = "";
        int64_t silent = 0, since = 0;
        if (!comes)
            trek_control_say(control, "forward", NULL);
        const char *wanted = me->detail[0] == '0' + other ? "training" : "forward";
        for (; strcmp(phase, wanted) != 0 || silent > 2000000000 || since <= 0; processes_pause(10))
            trek_control_peer(control, other, phase, sizeof phase, &silent, &since);
        printf("peer %s\n%s", phase, trek_control_table(control, table, sizeof table));
        trek_control_gather(control, &mine, sizeof mine, all, 0); /* nobody leaves before all have seen that */
    }
    trek_control_free(&control);
    return code;
}

static void count_end(void *arg) { atomic_fetch_add((atomic_int *)arg, 1); }

/* One ends the group; all hear of it without asking, those too that ask to be told later. */
static int play_end(const part *me)
{
    atomic_int before = 0, after = 0, forgotten = 0;
    trek_control *control = join(me, 60);
    if (!control)
        return report("join", trek_error_status());
    trek_status status = trek_control_on_end(control, count_end, &before);
    if (status == TREK_OK)
        status = trek_control_on_end(control, count_end, &forgotten);
    trek_control_forget(control, &forgotten);
    int mine = 0, all[PROCESSES];
    trek_control_gather(control, &mine, sizeof mine, all, 0);
    if (strcmp(me->detail, "ends") == 0) {
        trek_control_end(control, TREK_ERR_CANCELLED, "enough of this");
        trek_control_end(control, TREK_ERR_COMM, "not the first reason");
    }
    while (atomic_load(&before) == 0)
        processes_pause(10);
    trek_control_on_end(control, count_end, &after);
    while (atomic_load(&after) == 0)
        processes_pause(10);
    bool good = status == TREK_OK && trek_control_ended(control) && atomic_load(&before) == 1 && atomic_load(&after) == 1 &&
                atomic_load(&forgotten) == 0 && trek_control_fail(control) == TREK_ERR_CANCELLED;
    printf("%s %s\n", good ? "good" : "bad", trek_error());
    trek_control_free(&control);
    return good ? 0 : 1;
}

/* Process 1 ends the group and leaves. Process 0 leaves, too, before its thread has read that: it has kept the thread
 * from its lock until everything had come. */
static int play_hurry(const part *me)
{
    trek_control *control = join(me, 60);
    int mine = 0, all[PROCESSES];
    if (!control || trek_control_gather(control, &mine, sizeof mine, all, 0) != TREK_OK)
        return report("join", trek_error_status());
    if (me->process == 0) {
        trek_lock_acquire(&control->lock);
        printf("held\n");
        fflush(stdout);
        struct pollfd polled = { .fd = control->links[1].fd, .events = POLLRDHUP };
        while (poll(&polled, 1, -1) != 1) {
        }
        trek_control_leave(control, false);
        trek_lock_release(&control->lock);
    } else if (me->process == 1) {
        processes_await_go();
        trek_control_end(control, TREK_ERR_CANCELLED, "enough of this");
    } else {
        report("gather", trek_control_gather(control, &mine, sizeof mine, all, 0));
    }
    trek_control_free(&control);
    return 0;
}

/* A process with a child of its own is killed: its child does not keep its connection alive. */
static int play_fork(const part *me)
{
    trek_control *control = join(me, 60);
    if (!control)
        return report("join", trek_error_status());
    int mine = 0, all[PROCESSES];
    trek_control_gather(control, &mine, sizeof mine, all, 0);
    if (me->process == 1 && fork() == 0) {
        bool refused = trek_control_gather(control, &mine, sizeof mine, all, 0) == TREK_ERR_STATE;
        trek_control_say(control, "in the child", NULL);
        printf("child %s, %d\n", refused ? "refused" : "served", (int)getpid());
        alarm(200);
        processes_await_go(); /* it outlives its parent, and would keep its connection */
        trek_control_free(&control);
        _exit(0);
    }
    if (me->process == 1)
        processes_await_go();
    int code = report("gather", trek_control_gather(control, &mine, sizeof mine, all, 0));
    trek_control_free(&control);
    return code;
}

/* Leaves in order, one after the other: nobody has an error. */
static int play_leave(const part *me)
{
    int all[PROCESSES], mine = 0;
    trek_control *control = join(me, 60);
    if (!control)
        return report("join", trek_error_status());
    trek_status status = trek_control_gather(control, &mine, sizeof mine, all, 0);
    processes_pause(me->process * 120);
    bool ended = trek_control_ended(control);
    if (strcmp(me->detail, "calls") == 0) {
        processes_pause(500);
        status = trek_control_gather(control, &mine, sizeof mine, all, 0);
    }
    trek_control_free(&control);
    return report(ended ? "ended" : "leave", status);
}

/* Sums of 40 in the order of the processes, and what the first bytes of a gather depend on; now one is late, now another. */
static int play_tree(const part *me)
{
    enum { NUMBERS = 40 };
    static double mine[NUMBERS], all[NUMBERS * PROCESSES];
    trek_control *control = join(me, 30);
    bool good = control != NULL;
    uint32_t random = (uint32_t)me->process * 77 + 1;
    for (int i = 0; good && i < 60; i++) {
        random = random * 1664525u + 1013904223u;
        if (random >> 28 == 0)
            processes_pause((int)(random >> 24 & 7));
        for (int k = 0; k < NUMBERS; k++)
            mine[k] = (me->process + 1) * 0.1 + i * 1e-3 * k;
        good = trek_control_gather(control, mine, sizeof mine, all, i % 2 ? 0 : 20000000000) == TREK_OK;
        for (int k = 0; good && k < NUMBERS; k++) {
            double sum = 0, want = 0;
            for (int p = 0; p < me->processes; p++) {
                sum += all[p * NUMBERS + k];
                want += (p + 1) * 0.1 + i * 1e-3 * k;
            }
            good = memcmp(&sum, &want, sizeof sum) == 0;
        }
    }
    good = good && trek_control_gather(control, mine, 0, all, 0) == TREK_OK;
    printf("%s %s\nparent %d\n", good ? "good" : "bad", trek_error(), control ? trek_control_parent(control) : -2);
    trek_control_free(&control);
    return good ? 0 : 1;
}

/* Gathers until something fails; the victim does what it is told to before the fifth. */
static int play_fall(const part *me)
{
    trek_control *control = join(me, 30);
    int64_t mine = me->process, all[PROCESSES];
    trek_status status = control ? TREK_OK : trek_error_status();
    for (int i = 0; status == TREK_OK && i < 8; i++) {
        trek_control_say(control, "forward", NULL);
        if (i == 4 && strcmp(me->detail, "kill") == 0)
            kill(getpid(), SIGKILL);
        if (i == 4 && strcmp(me->detail, "stop") == 0)
            kill(getpid(), SIGSTOP);
        if (i == 4 && strcmp(me->detail, "exit") == 0)
            exit(0);
        if (i == 4 && strcmp(me->detail, "end") == 0)
            trek_control_end(control, TREK_ERR_CANCELLED, "enough of this");
        if (i == 4 && strcmp(me->detail, "leave") == 0)
            break;
        if (i == 4 && strcmp(me->detail, "late-saving") == 0)
            trek_control_say_long(control, "save");
        if (i == 4 && strcmp(me->detail, "late-plainly") == 0)
            stay_away(control);
        if (i == 4 && strcmp(me->detail, "late-saving") == 0) {
            processes_pause(DEADLINE_MS * 3 / 2);
            trek_control_say(control, NULL, NULL);
        }
        int64_t deadline = i == 4 && strcmp(me->detail, "late") == 0 ? come_last(control, me, me->process == 1) : A_MINUTE;
        if (i == 4 && strcmp(me->detail, "more") == 0)
            status = trek_control_gather(control, all, sizeof mine + 8, malloc(sizeof all * 2), deadline);
        else
            status = trek_control_gather(control, &mine, sizeof mine, all, deadline);
        for (int p = 0; status == TREK_OK && p < me->processes; p++)
            status = all[p] == p ? TREK_OK : TREK_ERR_STATE;
    }
    int code = report("gather", status);
    trek_control_free(&control);
    return code;
}

/* --- questions to process 0 */

enum { QUESTIONS = 500, LONG_QUESTION = 3000 };
typedef struct asked {
    int64_t total, of[PROCESSES];
} asked;

/* Answers with the sum of all numbers that the process has said, and counts. */
static void answer_sum(void *arg, int process, uint64_t number, const int64_t *question, int64_t count, int64_t *answer)
{
    asked *a = arg;
    for (int64_t k = 1; k < count; k++)
        a->of[process] += question[k];
    a->total++;
    answer[0] = a->of[process];
    answer[1] = (int64_t)number;
}

/* Each process asks about two subjects, sometimes long questions, and sometimes without waiting at once. Process 0 asks itself,
 * or does nothing, or "leaves" when it has answered one: those that ask further are told. */
static int play_ask(const part *me)
{
    static asked sums[2];
    static int64_t question[LONG_QUESTION];
    trek_control *control = join(me, 20);
    int64_t said[2] = { 0 }, answer[TREK_CONTROL_ANSWERS], mine = 0, all[PROCESSES];
    bool leaves = strcmp(me->detail, "leaves") == 0, has = false, good = control != NULL;
    int subjects[2] = { -1, -1 };
    for (int k = 0; good && k < 2; k++)
        subjects[k] = trek_control_subject(control, answer_sum, &sums[k]);
    good = good && subjects[0] == 0 && subjects[1] == 1;
    good = good && trek_control_gather(control, &mine, sizeof mine, all, 0) == TREK_OK; /* all subjects are known */
    for (int i = 1; good && i <= (leaves && me->process == 0 ? 1 : QUESTIONS); i++) {
        int of = i % 3 == 0;
        int64_t count = i % 50 == 0 ? LONG_QUESTION : 1 + i % 4;
        for (int64_t k = 1; k < count; k++)
            said[of] += question[k] = me->process * 1000 + i + k;
        trek_control_ask(control, subjects[of], (uint64_t)i, question, count);
        for (int k = 0; k < i % 5 && good; k++)
            good = trek_control_answer(control, subjects[of], false, answer, &has) == TREK_OK;
        good = good && trek_control_answer(control, subjects[of], true, answer, &has) == TREK_OK;
        good = good && has && answer[0] == said[of] && answer[1] == i;
    }
    if (good && !leaves) { /* a subject that is dropped has zeros for an answer */
        good = trek_control_gather(control, &mine, sizeof mine, all, 0) == TREK_OK;
        good = good && (me->process > 0 || sums[0].total + sums[1].total == (int64_t)QUESTIONS * me->processes);
        trek_control_drop_subject(control, subjects[1]);
        good = good && trek_control_gather(control, &mine, sizeof mine, all, 0) == TREK_OK;
        trek_control_ask(control, subjects[1], QUESTIONS + 1, question, 2);
        good = good && trek_control_answer(control, subjects[1], true, answer, &has) == TREK_OK && answer[0] == 0 &&
            answer[1] == 0;
        for (int k = 2; k < TREK_CONTROL_SUBJECTS && good; k++)
            good = trek_control_subject(control, answer_sum, NULL) == k;
        good = good && trek_control_subject(control, answer_sum, NULL) == -1;
        good = good && trek_control_gather(control, &mine, sizeof mine, all, 0) == TREK_OK; /* process 0 stays until then */
    }
    printf("%s %s\n", good ? "good" : "bad", trek_error());
    trek_control_free(&control);
    return good ? 0 : 1;
}

static const processes_role roles[] = {
    { "gather", play_gather }, { "join", play_join }, { "differ", play_differ }, { "late", play_late }, { "end", play_end },
    { "hurry", play_hurry }, { "fork", play_fork }, { "leave", play_leave }, { "tree", play_tree }, { "fall", play_fall },
    { "ask", play_ask },
};

/* --- tests -------------------------------------------------------------------------------------------------------- */

static bool has_ipv6(void)
{
    struct sockaddr_in6 own = { .sin6_family = AF_INET6, .sin6_addr = in6addr_loopback };
    int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool there = fd >= 0 && bind(fd, (struct sockaddr *)&own, sizeof own) == 0;
    if (fd >= 0)
        close(fd);
    return there;
}

static void test_gathers(void **state)
{
    static const struct { int n; const char *address; } rows[] = { { 2, "127.0.0.1" }, { 3, "::1" }, { 5, "localhost" } };
    static world w;
    for (int k = 0; k < 3; k++) {
        if (k == 1 && !has_ipv6())
            continue;
        processes_init(&w, rows[k].n);
        w.address = rows[k].address;
        for (int p = 0; p < w.n; p++)
            processes_start(&w, p, "gather", "");
        processes_finish(&w, -1);
        for (int p = 0; p < w.n; p++)
            WANT(&w, w.code[p] == 0 && strstr(w.text[p], "good") && !strstr(w.text[p], "error"));
    }
}

static void test_questions(void **state)
{
    static world w;
    for (int leaves = 0; leaves < 2; leaves++)
        for (int n = 2; n <= 4; n += 2) {
            processes_run_all(&w, n, "ask", leaves ? "leaves" : "", -1, NULL);
            for (int p = 0; p < n; p++)
                WANT(&w, !leaves || p == 0 ? w.code[p] == 0 && strstr(w.text[p], "good")
                                           : w.code[p] == 1 && strstr(w.text[p], "process 0 has left"));
        }
}

static int connect_to(const char *address, int port)
{
    struct sockaddr_in there = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port) };
    inet_pton(AF_INET, address, &there.sin_addr);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    for (int i = 0; fd >= 0 && i < 6000; i++) {
        if (connect(fd, (struct sockaddr *)&there, sizeof there) == 0)
            return fd;
        close(fd);
        fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (strcmp(address, "127.0.0.1") != 0)
            break;
        processes_pause(10);
    }
    if (fd >= 0)
        close(fd);
    return -1;
}

/* Garbage, half a greeting, silence, and processes that do not belong here; meanwhile the right ones join. */
static void test_strangers(void **state)
{
    static world w, wrong;
    static const char *const details[] = { "token", "world", "", NULL };
    char byte;
    bool other = false;
    processes_init(&w, 3);
    processes_start(&w, 0, "join", "");
    processes_start(&w, 1, "join", "");
    int garbage = connect_to("127.0.0.1", w.port), half = connect_to("127.0.0.1", w.port),
        silent = connect_to("127.0.0.1", w.port);
    int elsewhere = connect_to("127.0.0.2", w.port);
    static const char head[24] = { 't', 'r', 'e', 'k', 't', 'l', '0', '1', 0, 0, 0, 0, 0, 0, 0, 0, 1 };
    ssize_t sent = send(garbage, "GET / HTTP/1.1\r\n\r\n", 18, MSG_NOSIGNAL) + send(half, head, sizeof head, MSG_NOSIGNAL);
    ssize_t answer = recv(garbage, &byte, 1, 0);
    for (int k = 0; k < 3; k++) {
        memset(&wrong, 0, sizeof wrong);
        wrong.n = 3;
        wrong.port = w.port;
        wrong.address = "127.0.0.1";
        wrong.start = processes_now();
        processes_start(&wrong, 1, "join", details[k]); /* the third says process 1 again: whoever comes first is */
        while (k == 2 && !processes_wrote(&w, 1, "rejected") && !processes_wrote(&wrong, 1, "rejected"))
            processes_pause(10);
        other = k == 2 && processes_wrote(&w, 1, "rejected");
        if (other)
            processes_kill(&w, 1);
        else
            processes_finish(&wrong, -1);
        const char *text = other ? w.text[1] : wrong.text[1];
        WANT(&wrong, strstr(text, "TREK_ERR_COMM: process 1 was rejected by process 0 at 127.0.0.1:") != NULL);
        WANT(&wrong, strstr(text, k == 0   ? "the token is not"
                                  : k == 1 ? "a world of 4 processes, process 0 in 3"
                                           : "there is a process 1 already") != NULL);
        WANT(&wrong, strstr(text, "sesam") == NULL);
    }
    processes_start(&w, 2, "join", "");
    processes_finish(&w, -1);
    processes_finish(&wrong, -1);
    close(garbage);
    close(half);
    close(silent);
    for (int p = 0; p < 3; p++) {
        const world *of = p == 1 && other ? &wrong : &w;
        WANT(of, of->code[p] == 0 && strstr(of->text[p], "joined TREK_OK"));
    }
    WANT(&w, garbage >= 0 && half >= 0 && silent >= 0 && sent == 42);
    WANT(&w, answer <= 0);      /* it was hung up on */
    WANT(&w, elsewhere < 0);    /* process 0 listens at its address alone */
}

/* More connections that say nothing than there are places for arrivals: those who speak come in at once. */
static void test_crowd(void **state)
{
    static world w;
    enum { CROWD = 600 };
    static int silent[CROWD];
    int connected = 0;
    processes_init(&w, 3);
    processes_start(&w, 0, "join", "");
    silent[0] = connect_to("127.0.0.1", w.port);
    for (int k = 1; k < CROWD; k++)
        silent[k] = connect_to("127.0.0.1", w.port);
    for (int k = 0; k < CROWD; k++)
        connected += silent[k] >= 0;
    processes_start(&w, 1, "join", "");
    processes_start(&w, 2, "join", "");
    processes_finish(&w, -1);
    for (int k = 0; k < CROWD; k++)
        close(silent[k]);
    for (int p = 0; p < 3; p++)
        WANT(&w, w.code[p] == 0 && strstr(w.text[p], "joined TREK_OK"));
    WANT(&w, connected == CROWD);
}

static int listen_at(int port)
{
    struct sockaddr_in own = { .sin_family = AF_INET,
                               .sin_port = htons((uint16_t)port),
                               .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && bind(fd, (struct sockaddr *)&own, sizeof own) == 0 && listen(fd, 8) == 0)
        return fd;
    return -1;
}

/* Another program has the port: it does not answer, or not as it should. */
static void test_port_in_use(void **state)
{
    static world w, mute;
    processes_init(&w, 2);
    processes_init(&mute, 2);
    int talking = listen_at(w.port), silent = listen_at(mute.port);
    processes_start(&mute, 1, "join", "");
    processes_start(&w, 0, "join", "");
    processes_start(&w, 1, "join", "");
    int fd = accept(talking, NULL, NULL);
    ssize_t sent = send(fd, "HTTP/1.1 400 Bad Request\r\n\r\n", 28, MSG_NOSIGNAL);
    processes_finish(&w, -1);
    processes_finish(&mute, -1);
    close(fd);
    close(talking);
    close(silent);
    char where[64];
    snprintf(where, sizeof where, "cannot listen at 127.0.0.1:%d: Address already in use", w.port);
    WANT(&w, sent == 28 && w.code[0] == 1 && strstr(w.text[0], "TREK_ERR_COMM") && strstr(w.text[0], where));
    WANT(&w, w.code[1] == 1 && strstr(w.text[1], "does not answer as process 0 of this job"));
    WANT(&mute, mute.code[1] == 1 && strstr(mute.text[1], "does not answer as process 0 of this job"));
}

/* Some do not come: those who did learn who. Where process 0 is missing, that it is. */
static void test_missing(void **state)
{
    static world some, no_zero;
    processes_init(&some, 4);
    processes_start(&some, 0, "join", "short");
    processes_start(&some, 2, "join", "short");
    processes_init(&no_zero, 2);
    processes_start(&no_zero, 1, "join", "short");
    processes_finish(&some, -1);
    processes_finish(&no_zero, -1);
    for (int p = 0; p < 4; p += 2) {
        WANT(&some, some.code[p] == 1 &&
                        strstr(some.text[p], "TREK_ERR_TIMEOUT: processes 1, 3 of 4 did not come to 127.0.0.1:") &&
                        strstr(some.text[p], " within 4 s; 0, 2 did"));
    }
    WANT(&no_zero, no_zero.code[1] == 1 &&
                       strstr(no_zero.text[1], "TREK_ERR_TIMEOUT: comm_init: process 1 did not reach process 0 at 127.0.0.1:") &&
                       strstr(no_zero.text[1], "Connection refused"));
}

/* One dies that has come, while another is still awaited. Whether it has come cannot be seen: if it has not, it comes again. */
static void test_death_while_joining(void **state)
{
    static world w;
    processes_init(&w, 4);
    for (int p = 0; p < 3; p += 2)
        processes_start(&w, p, "join", "");
    for (int ms = 300; !processes_wrote(&w, 0, "joined "); ms *= 2) {
        processes_start(&w, 1, "join", "");
        processes_pause(ms);
        processes_kill(&w, 1);
        processes_pause(ms);
    }
    processes_finish(&w, -1);
    for (int p = 0; p < 3; p += 2)
        WANT(&w, w.code[p] == 1 && strstr(w.text[p], "TREK_ERR_PEER: process 1 died") && strstr(w.text[p], "joining"));
}

static void test_late_starters(void **state)
{
    static world w;
    processes_start_all(&w, 3, "join", "", 0, "late"); /* the others try until process 0 is there */
    processes_finish(&w, -1);
    for (int p = 0; p < 3; p++)
        WANT(&w, w.code[p] == 0);
}

static void test_different_gathers(void **state)
{
    static world w;
    processes_run_all(&w, 3, "differ", "", 2, "more");
    for (int p = 0; p < 3; p++)
        WANT(&w, w.code[p] == 1 && strstr(w.text[p], "TREK_ERR_COMM: the processes' gathers differ") && strstr(w.text[p], "32") &&
                     strstr(w.text[p], "16"));
}

static void test_deadlines(void **state)
{
    static world late[2], saving[2];
    for (int k = 0; k < 2; k++) {
        const char *which = k ? "1" : "0";
        processes_start_all(&late[k], 3, "late", which, k, "comes");
        processes_start_all(&saving[k], 3, "late", which, k, "comes-saving");
    }
    for (int k = 0; k < 2; k++) {
        char named[64];
        snprintf(named, sizeof named, "process %d did not come within 3 s", k);
        processes_finish(&late[k], -1);
        processes_finish(&saving[k], -1);
        for (int p = 0; p < 3; p++) {
            WANT(&late[k], late[k].code[p] == 1 && strstr(late[k].text[p], "TREK_ERR_TIMEOUT: gather 2: ") &&
                               strstr(late[k].text[p], named) && strstr(late[k].text[p], "in phase \"forward\""));
            WANT(&saving[k], saving[k].code[p] == 0);
            WANT(&saving[k], strstr(saving[k].text[p], (p + 1) % 3 == k ? "peer training\n" : "peer forward\n"));
            WANT(&saving[k], strstr(saving[k].text[p], "process 2 (pid ") || p > 0);
        }
    }
}

static void test_end(void **state)
{
    static world w;
    for (int ender = 0; ender < 2; ender++) {
        processes_run_all(&w, 3, "end", "", ender, "ends");
        for (int p = 0; p < 3; p++)
            WANT(&w, w.code[p] == 0 && strstr(w.text[p], "good enough of this"));
    }
}

static void test_hurry(void **state)
{
    static world w;
    processes_start_all(&w, 3, "hurry", "", -1, NULL);
    if (processes_await(&w, 0, "held"))
        processes_go(&w, 1);
    processes_finish(&w, -1);
    WANT(&w, w.code[2] == 0 && strstr(w.text[2], "gather TREK_ERR_CANCELLED: enough of this"));
}

static void test_fork(void **state)
{
    static world w;
    processes_start_all(&w, 3, "fork", "", -1, NULL);
    bool refused = processes_await(&w, 1, "child refused, ");
    processes_kill(&w, 1);
    processes_finish(&w, -1);
    for (int p = 0; p < 3; p += 2)
        WANT(&w, w.code[p] == 1 && strstr(w.text[p], "TREK_ERR_PEER") && strstr(w.text[p], "process 1 died"));
    WANT(&w, w.code[1] == -SIGKILL && refused);
    int child = atoi(strstr(w.text[1], "child refused, ") + 15);
    WANT(&w, child > 1 && kill(child, SIGKILL) == 0); /* it was alive all the time */
}

static void test_leaving(void **state)
{
    static world w, on;
    processes_start_all(&w, 3, "leave", "", -1, NULL);
    processes_start_all(&on, 3, "leave", "", 1, "calls");
    processes_finish(&w, -1);
    processes_finish(&on, -1);
    for (int p = 0; p < 3; p++) {
        WANT(&w, w.code[p] == 0 && strstr(w.text[p], "leave TREK_OK") && !strstr(w.text[p], "error"));
        WANT(&on, on.code[p] == (p == 1));
    }
    WANT(&on, strstr(on.text[1], "TREK_ERR_PEER: process ") && strstr(on.text[1], " has left"));
}

/* The rows of a tree are one behind the other, and as even as can be. */
static void test_shape(void **state)
{
    static const struct { int processes, flat, fan; } rows[] = {
        { 2, 16, 0 }, { 16, 16, 0 }, { 17, 16, 5 }, { 40, 16, 7 }, { 256, 16, 16 }, { 257, 16, 7 }, { 1024, 16, 11 },
        { 1024, 1024, 0 }, { 4096, 16, 16 }, { 3, 2, 2 }, { 5, 2, 3 },
    };
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        int n = rows[r].processes, fan = trek_tree_fan(n, rows[r].flat), below = 0, deepest = 0;
        assert_int_equal(fan, rows[r].fan);
        for (int p = 0; p < n; p++) {
            trek_tree_node node = trek_tree_place(n, fan, p), up = node;
            int next = p + 1, size = 0, depth = 0;
            assert_true(node.process == p && (fan == 0 || node.children <= fan));
            for (int k = 0; k < node.children; k++, next += size, below++) {
                assert_int_equal(trek_tree_child(&node, k, &size), next);
                assert_int_equal(trek_tree_which(&node, next), k);
                trek_tree_node child = trek_tree_place(n, fan, next);
                assert_true(child.parent == p && child.size == size && (size == 1 || trek_tree_which(&node, next + 1) < 0));
            }
            assert_int_equal(next, p + node.size);
            for (; up.parent >= 0; depth++)
                up = trek_tree_place(n, fan, up.parent);
            deepest = depth > deepest ? depth : deepest;
        }
        assert_int_equal(below, n - 1); /* everybody has one parent */
        assert_true(deepest <= (n <= 256 ? 2 : 3));
    }
}

static void test_tree(void **state)
{
    static const struct { int n; const char *detail; } rows[] = { { 17, "" }, { 7, "small-tree" } };
    static world w;
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        processes_run_all(&w, rows[r].n, "tree", rows[r].detail, -1, NULL);
        for (int p = 0; p < w.n; p++) {
            char parent[32];
            snprintf(parent, sizeof parent, "parent %d\n",
                     trek_tree_place(w.n, trek_tree_fan(w.n, rows[r].n < 16 ? 2 : 16), p).parent);
            WANT(&w, w.code[p] == 0 && strstr(w.text[p], "good \n") && strstr(w.text[p], parent));
        }
    }
}

/* status NULL: nothing fails. */
static void check_fall(world *w, int victim, const char *status, const char *format, bool all, bool stopped)
{
    char words[80];
    snprintf(words, sizeof words, format, victim);
    processes_finish(w, stopped ? victim : -1);
    processes_kill(w, victim);
    for (int p = 0; p < w->n; p++) {
        if (p == victim && status && !all)
            continue;
        WANT(w, w->code[p] == (status != NULL) && strstr(w->text[p], "gather "));
        WANT(w, !status || (strstr(w->text[p], status) && strstr(w->text[p], words)));
    }
}

/* What happens to one, in the midst of the tree or at its end, is told by name to all, as soon as without a tree. */
static void test_fall_in_tree(void **state)
{
    enum { N = 10, INNER = 7, LEAF = 9 };
    static const struct { const char *detail, *status, *words, *calm; } rows[] = {
        { "kill", "TREK_ERR_PEER", "process %d died", "" },
        { "stop", "TREK_ERR_PEER", "process %d has not been heard of", "" },
        { "exit", "TREK_ERR_PEER", "process %d has left: it exited", "" },
        { "leave", "TREK_ERR_PEER", "process %d has left: it left the group", "" },
        { "end", "TREK_ERR_CANCELLED", "enough of this", "" },
        { "more", "TREK_ERR_COMM", "the processes' gathers differ", "" },
        { "late-plainly", "TREK_ERR_TIMEOUT", "gather 5: process %d did not come within 3 s", "late" },
        { "late-saving", NULL, "", "late" },
    };
    enum { ROWS = sizeof rows / sizeof *rows };
    static world w[ROWS][2];
    assert_int_equal(trek_tree_place(N, trek_tree_fan(N, 2), INNER).children, 2);
    assert_int_equal(trek_tree_place(N, trek_tree_fan(N, 2), LEAF).parent, INNER);
    for (int k = 0; k < 2 * ROWS; k++) /* all at once, as they mostly wait */
        processes_start_all(&w[k / 2][k % 2], N, "fall", rows[k / 2].calm, k % 2 ? LEAF : INNER, rows[k / 2].detail);
    for (int k = 0; k < 2 * ROWS; k++)
        check_fall(&w[k / 2][k % 2], k % 2 ? LEAF : INNER, rows[k / 2].status, rows[k / 2].words,
                   strcmp(rows[k / 2].detail, "late-plainly") == 0, strcmp(rows[k / 2].detail, "stop") == 0);
}

int main(void)
{
    part me;
    if (processes_part(&me))
        return processes_play(&me, roles, sizeof roles / sizeof *roles);
    alarm(600);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gathers), cmocka_unit_test(test_questions),       cmocka_unit_test(test_strangers),
            cmocka_unit_test(test_crowd),
            cmocka_unit_test(test_port_in_use),
        cmocka_unit_test(test_missing),       cmocka_unit_test(test_death_while_joining), cmocka_unit_test(test_late_starters),
        cmocka_unit_test(test_different_gathers), cmocka_unit_test(test_deadlines),       cmocka_unit_test(test_end),
        cmocka_unit_test(test_hurry),
        cmocka_unit_test(test_fork),          cmocka_unit_test(test_leaving),
        cmocka_unit_test(test_shape),         cmocka_unit_test(test_tree),                cmocka_unit_test(test_fall_in_tree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
