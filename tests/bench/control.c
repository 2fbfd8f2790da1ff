/* SPDX-License-Identifier: Apache-2.0 */
/* What a gather over the control channel costs, with a tree and without.
 *
 *   trek-bench-control [most processes [bytes]]    real processes on this machine, 2, 4, 8, ... (256; 64 bytes of each);
 *                                                  beside them Gloo's all-reduce of as many bytes, up to 64 processes;
 *                                                  then the simulation with what a message costs here
 *   trek-bench-control simulate [bytes [latency us [GB/s]]]   only that (64, 10, 12.5)
 *
 * The simulation: every process has a machine of its own. Its thread of the control channel takes one message after the
 * other, `take` each, and sends one after the other, `send` each, both by the byte, too; a thread that has to be woken
 * loses `wake`. A message is on its way for the latency and its bytes at the link's rate, which it has for itself only when
 * those before it have left. All processes come at once; a gather is over when the last one has all parts. send and the
 * costs of a byte are measured between two sockets of this machine, whose sender also does the network's work for the
 * receiver; take is what process 0 computes for a message of 32 processes beside sending, with all that its thread does
 * around it; wake is half of the way to another thread and back, both asleep in poll. */
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <time.h>
#include <unistd.h>

#include "distributed/comm/comm_internal.h"
#include "distributed/comm/gloo/gloo.h"
#include "distributed/control/control_internal.h"
#include "tensor/trace.h"

enum { BLOCKS = 5, MOST_GLOO = 64 };

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int n)
{
    qsort(values, (size_t)n, sizeof *values, by_value);
    return values[n / 2];
}

static double least(const double *values, int n)
{
    double found = values[0];
    for (int k = 1; k < n; k++)
        found = values[k] < found ? values[k] : found;
    return found;
}

/* --- a process of a world ----------------------------------------------------------------------------------------- */

static int rounds_of(const char *way, int processes)
{
    return (processes <= 16 ? 1000 : 16000 / processes) / (strcmp(way, "gloo") == 0 ? 10 : 1);
}

static double cpu_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return 1e6 * (double)t.tv_sec + 1e-3 * (double)t.tv_nsec;
}

static bool gathers_once(trek_control *control, trek_comm *comm, const char *mine, char *all, size_t bytes)
{
    if (control)
        return trek_control_gather(control, mine, bytes, all, 0) == TREK_OK;
    return trek_comm_run(comm, (trek_comm_call){ .kind = TREK_COMM_ALL_REDUCE, .op = TREK_REDUCTION_SUM, .dtype = TREK_F64,
                                                 .count = (int64_t)bytes / 8, .in = mine, .out = all }) == TREK_OK;
}

/* part WAY PROCESS PROCESSES PORT BYTES: prints its number, and the microseconds and those of processor time of one gather, the
 * least of a few blocks: others use the machine, too. */
static int play(char **words)
{
    const char *way = words[0];
    int process = atoi(words[1]), processes = atoi(words[2]), port = atoi(words[3]), rounds = rounds_of(way, processes);
    size_t bytes = (size_t)atoll(words[4]);
    double us[BLOCKS], cpu[BLOCKS];
    trek_control *control = NULL;
    trek_comm *comm = NULL;
    if (strcmp(way, "gloo") == 0)
        comm = trek_comm_init(&(trek_comm_opts){ .engine = "gloo", .rank = process, .world_size = processes, .port = port,
                                                 .address = "127.0.0.1", .token = "bench", .deadline_s = 120 });
    else
        control = trek_control_join(&(trek_control_opts){ .process = process, .processes = processes, .port = port,
                                                          .token = "bench", .join_s = 120,
                                                          .flat = strcmp(way, "tree") == 0 ? 2 : TREK_MAX_RANKS });
    char *mine = calloc(1, bytes + 8), *all = calloc((size_t)processes, bytes + 8);
    bool good = (control || comm) && mine && all;
    for (int k = 0; k < 20 && good; k++)
        good = gathers_once(control, comm, mine, all, bytes);
    for (int block = 0; block < BLOCKS && good; block++) {
        int64_t begin = trek_clock_ns();
        double begin_us = cpu_us();
        for (int k = 0; k < rounds && good; k++)
            good = gathers_once(control, comm, mine, all, bytes);
        us[block] = (double)(trek_clock_ns() - begin) * 1e-3 / rounds;
        cpu[block] = (cpu_us() - begin_us) / rounds;
    }
    if (!good)
        fprintf(stderr, "process %d: %s\n", process, trek_error());
    else
        printf("%d %.3f %.3f\n", process, least(us, BLOCKS), least(cpu, BLOCKS));
    free(mine);
    free(all);
    trek_comm_free(&comm);
    trek_control_free(&control);
    return !good;
}

/* --- worlds ------------------------------------------------------------------------------------------------------- */

static int free_port(void)
{
    struct sockaddr_in any = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t length = sizeof any;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool good = fd >= 0 && bind(fd, (struct sockaddr *)&any, sizeof any) == 0 &&
                getsockname(fd, (struct sockaddr *)&any, &length) == 0;
    if (fd >= 0)
        close(fd);
    return good ? ntohs(any.sin_port) : 0;
}

/* Of a gather, in microseconds: how long it takes, and of what all processes compute. us < 0: it failed. */
typedef struct outcome {
    double us, cpu_us, zero_us; /* zero_us: of what process 0 computes */
} outcome;

static outcome read_outcome(int fd)
{
    outcome o = { .us = -1 };
    FILE *file = fdopen(fd, "r");
    double us, cpu;
    for (int process; file && fscanf(file, "%d %lf %lf", &process, &us, &cpu) == 3;) {
        o.us = process == 0 ? us : o.us;
        o.zero_us = process == 0 ? cpu : o.zero_us;
        o.cpu_us += cpu;
    }
    if (file)
        fclose(file);
    return o;
}

static outcome run_world(const char *way, int processes, size_t bytes)
{
    extern char **environ;
    int out[2], failed = 0, started = 0;
    char number[4][24];
    pid_t *pids = calloc((size_t)processes, sizeof *pids);
    posix_spawn_file_actions_t actions;
    if (!pids || pipe2(out, O_CLOEXEC) != 0)
        exit(1);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, out[1], 1);
    snprintf(number[1], sizeof number[1], "%d", processes);
    snprintf(number[2], sizeof number[2], "%d", free_port());
    snprintf(number[3], sizeof number[3], "%zu", bytes);
    for (int p = 0; p < processes; p++, started++) {
        snprintf(number[0], sizeof number[0], "%d", p);
        char *words[] = { "part", "part", (char *)(uintptr_t)way, number[0], number[1], number[2], number[3], NULL };
        if (posix_spawn(&pids[p], "/proc/self/exe", &actions, NULL, words, environ) != 0)
            break;
    }
    close(out[1]);
    for (int p = 0; p < started; p++) {
        int status = 0;
        waitpid(pids[p], &status, 0);
        failed += status != 0;
    }
    outcome o = read_outcome(out[0]);
    posix_spawn_file_actions_destroy(&actions);
    free(pids);
    return failed || started < processes ? (outcome){ .us = -1 } : o;
}

/* --- what a message costs ----------------------------------------------------------------------------------------- */

/* Microseconds for a message, and for each byte of it. */
typedef struct costs {
    double send, send_byte, take, take_byte, wake;
} costs;

static bool connected_pair(int *ends)
{
    struct sockaddr_in any = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t length = sizeof any;
    int one = 1, listening = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ends[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(listening, (struct sockaddr *)&any, sizeof any) != 0 || listen(listening, 1) != 0 ||
        getsockname(listening, (struct sockaddr *)&any, &length) != 0 || connect(ends[0], (struct sockaddr *)&any, length) != 0)
        return false;
    ends[1] = accept4(listening, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    close(listening);
    for (int k = 0; k < 2; k++)
        setsockopt(ends[k], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return ends[1] >= 0;
}

/* One thread plays both: a message is sent, then taken. */
static void time_messages(size_t bytes, double *send_us, double *take_us)
{
    enum { TIMES = 2000 };
    static double sending[TIMES], taking[TIMES];
    int ends[2];
    char *data = calloc(1, bytes);
    trek_control *control = trek_control_make(&(trek_control_opts){ .process = 0, .processes = 2, .port = 1 });
    if (!control || !data || !connected_pair(ends))
        exit(1);
    trek_control_link sender = { .fd = ends[0], .process = 1 };
    control->links[1] = (trek_control_link){ .fd = ends[1], .process = 1 };
    for (int k = 0; k < TIMES; k++) {
        trek_lock_acquire(&control->lock);
        control->slots[0].number = control->slots[1].number = 0; /* each is the first part of its gather */
        int64_t begin = trek_clock_ns();
        trek_control_send(control, &sender, TREK_CONTROL_GATHER, (uint64_t)k + 1, data, bytes);
        int64_t middle = trek_clock_ns();
        while (control->slots[(k + 1) & 1].number != (uint64_t)k + 1)
            trek_control_serve_link(control, &control->links[1]);
        int64_t end = trek_clock_ns();
        trek_lock_release(&control->lock);
        sending[k] = (double)(middle - begin) * 1e-3;
        taking[k] = (double)(end - middle) * 1e-3;
    }
    *send_us = median(sending, TIMES);
    *take_us = median(taking, TIMES);
    trek_control_link_close(&sender);
    trek_control_destroy(control);
    free(data);
}

static bool wait_for(int fd)
{
    uint64_t count;
    struct pollfd polled = { .fd = fd, .events = POLLIN };
    return poll(&polled, 1, -1) == 1 && read(fd, &count, sizeof count) == sizeof count;
}

static void *answer(void *arg)
{
    const int *fds = arg;
    uint64_t one = 1;
    while (wait_for(fds[0]) && write(fds[1], &one, sizeof one) == sizeof one)
        ;
    return NULL;
}

static double time_wake(void)
{
    enum { TIMES = 2000 };
    static double us[TIMES];
    static int fds[2];
    uint64_t one = 1;
    pthread_t thread;
    fds[0] = eventfd(0, EFD_CLOEXEC);
    fds[1] = eventfd(0, EFD_CLOEXEC);
    if (pthread_create(&thread, NULL, answer, fds) != 0)
        exit(1);
    for (int k = 0; k < TIMES; k++) {
        int64_t begin = trek_clock_ns();
        if (write(fds[0], &one, sizeof one) != sizeof one || !wait_for(fds[1]))
            exit(1);
        us[k] = (double)(trek_clock_ns() - begin) * 1e-3 / 2;
    }
    pthread_detach(thread);
    return median(us, TIMES);
}

static costs measure_costs(size_t bytes)
{
    enum { LARGE = 32 << 10, SOME = 32 };
    costs c;
    double send, take;
    time_messages(8, &c.send, &c.take);
    time_messages(LARGE, &send, &take);
    c.send_byte = (send - c.send) / LARGE;
    c.take_byte = (take - c.take) / LARGE;
    take = run_world("flat", SOME, bytes).zero_us / (SOME - 1) - c.send;
    c.take = take > c.take ? take : c.take;
    c.wake = time_wake();
    return c;
}

/* --- the simulation ----------------------------------------------------------------------------------------------- */

typedef struct network {
    double latency_us, bytes_per_us;
} network;

/* A process that sends or takes one message after the other. */
typedef struct worker {
    double free_at, link_free_at;
} worker;

static double send_at(worker *w, const costs *c, const network *net, double now, double bytes)
{
    w->free_at = (now > w->free_at ? now : w->free_at) + c->send + bytes * c->send_byte;
    w->link_free_at = (w->free_at > w->link_free_at ? w->free_at : w->link_free_at) + bytes / net->bytes_per_us;
    return w->link_free_at + net->latency_us;
}

static void take_at(worker *w, const costs *c, double arrives, double bytes)
{
    if (arrives > w->free_at)
        w->free_at = arrives + c->wake;
    w->free_at += c->take + bytes * c->take_byte;
}

/* When the parts of this process's tree are together there. order: scratch for the children's arrivals. */
static double climb(worker *workers, const costs *c, const network *net, int processes, int fan, int process, double bytes)
{
    trek_tree_node node = trek_tree_place(processes, fan, process);
    double *arrives = malloc((size_t)(node.children + 1) * sizeof *arrives);
    int size;
    if (!arrives)
        exit(1);
    for (int k = 0; k < node.children; k++) {
        int child = trek_tree_child(&node, k, &size);
        double ready = climb(workers, c, net, processes, fan, child, bytes);
        arrives[k] = send_at(&workers[child], c, net, ready, bytes * size);
    }
    qsort(arrives, (size_t)node.children, sizeof *arrives, by_value);
    for (int k = 0; k < node.children; k++)
        take_at(&workers[process], c, arrives[k], bytes * (double)(node.size - 1) / node.children);
    free(arrives);
    return workers[process].free_at;
}

/* The last moment at which a process of this one's tree has all parts. */
static double descend(worker *workers, const costs *c, const network *net, int processes, int fan, int process, double bytes)
{
    trek_tree_node node = trek_tree_place(processes, fan, process);
    double latest = 0, all = bytes * processes;
    int size;
    for (int k = 0; k < node.children; k++) {
        int child = trek_tree_child(&node, k, &size);
        take_at(&workers[child], c, send_at(&workers[process], c, net, workers[process].free_at, all), all);
    }
    for (int k = 0; k < node.children; k++) {
        double end = descend(workers, c, net, processes, fan, trek_tree_child(&node, k, &size), bytes);
        latest = end > latest ? end : latest;
    }
    double own = workers[process].free_at + c->wake; /* of the thread that waits for it */
    return own > latest ? own : latest;
}

static double simulate(const costs *c, const network *net, int processes, int flat, double bytes)
{
    worker *workers = calloc((size_t)processes, sizeof *workers);
    int fan = trek_tree_fan(processes, flat);
    if (!workers)
        exit(1);
    climb(workers, c, net, processes, fan, 0, bytes);
    double end = descend(workers, c, net, processes, fan, 0, bytes);
    free(workers);
    return end;
}

static void print_simulation(const costs *c, double latency, double rate, double bytes)
{
    network net = { .latency_us = latency, .bytes_per_us = rate * 1e3 };
    printf("\nsimulated, each process on a machine of its own, %g us latency, %g GB/s, %g bytes of each, microseconds\n"
           "%10s %10s %10s %8s\n", latency, rate, bytes, "processes", "flat", "tree", "fan");
    for (int n = 2; n <= 4096; n *= 2)
        printf("%10d %10.0f %10.0f %8d\n", n, simulate(c, &net, n, n, bytes), simulate(c, &net, n, 16, bytes),
               trek_tree_fan(n, 16));
}

static void print_costs(const costs *c)
{
    printf("a message here: sent in %.2f us and %.3f ns a byte, taken in %.2f us and %.3f ns a byte; a thread wakes in %.1f us\n",
           c->send, c->send_byte * 1e3, c->take, c->take_byte * 1e3, c->wake);
}

static void print_gather(outcome o)
{
    if (o.us < 0)
        printf(" %8s %8s", "-", "");
    else
        printf(" %8.0f %8.0f", o.us, o.cpu_us);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    char why[256];
    if (argc == 7 && strcmp(argv[1], "part") == 0)
        return play(argv + 2);
    bool only = argc > 1 && strcmp(argv[1], "simulate") == 0;
    int most = argc > 1 && !only ? atoi(argv[1]) : 256;
    size_t bytes = argc > 2 ? (size_t)atoll(argv[2]) : 64;
    costs c = measure_costs(bytes);
    print_costs(&c);
    bool gloo = trek_comm_gloo_there(why, sizeof why);
    if (!only)
        printf("\nmeasured, all processes on this machine, %zu bytes of each, microseconds a gather, and of all "
               "processors\n%10s %17s %17s %17s\n", bytes, "processes", "flat", "tree", "Gloo's sum");
    for (int n = 2; n <= most && !only; n *= 2) {
        printf("%10d", n);
        print_gather(run_world("flat", n, bytes));
        print_gather(run_world("tree", n, bytes));
        print_gather(gloo && n <= MOST_GLOO ? run_world("gloo", n, bytes) : (outcome){ .us = -1 });
        printf("\n");
    }
    print_simulation(&c, only && argc > 3 ? atof(argv[3]) : 10, only && argc > 4 ? atof(argv[4]) : 12.5, (double)bytes);
    return 0;
}
