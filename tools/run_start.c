/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/run_start.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static struct {
    pid_t pid;             /* 0 if it has ended, or is not on this machine */
    int end;               /* a pidfd; -1 if there is none */
} processes[MOST];
static sigset_t mask_before; /* for the processes */
static int ends = -1;      /* reports processes that have ended, in the order of their ends; -1 if unavailable */
static int deaths = -1; /* a file in memory with a line for each process that has ended, for processes that wait for it; -1 if
                         * there is none */

double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int start_begin(void)
{
    sigset_t handled;
    static const int passed[] = { SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGCHLD };
    sigemptyset(&handled);
    for (size_t k = 0; k < sizeof passed / sizeof *passed; k++)
        sigaddset(&handled, passed[k]);
    sigprocmask(SIG_BLOCK, &handled, &mask_before);
    signal(SIGPIPE, SIG_IGN);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    ends = epoll_create1(EPOLL_CLOEXEC);
    deaths = memfd_create("trek-run", MFD_CLOEXEC);
    return signalfd(-1, &handled, SFD_CLOEXEC | SFD_NONBLOCK);
}

void start_unblock(void)
{
    signal(SIGPIPE, SIG_DFL);
    sigprocmask(SIG_SETMASK, &mask_before, NULL);
}

/* --- what a machine has ------------------------------------------------------------ */

bool start_find_port(char text[16])
{
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_ANY) };
    socklen_t size = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
    bool found = fd >= 0 && bind(fd, (struct sockaddr *)&address, size) == 0 &&
                 setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
                 getsockname(fd, (struct sockaddr *)&address, &size) == 0;
    if (!found && fd >= 0)
        close(fd);
    snprintf(text, 16, "%d", (int)ntohs(address.sin_port));
    return found;
}

void start_machine(char *text, size_t size)
{
    char boot[64] = "", network[64] = "", host[128] = "";
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (file && !fgets(boot, sizeof boot, file))
        boot[0] = '\0';
    if (file)
        fclose(file);
    boot[strcspn(boot, "\n")] = '\0';
    ssize_t length = readlink("/proc/self/ns/net", network, sizeof network - 1);
    network[length > 0 ? length : 0] = '\0';
    if (!*boot)
        gethostname(host, sizeof host - 1);
    snprintf(text, size, "%s%s %s", boot, host, network);
}

/* Selects the cores numbered [first, first + count) among those that this process may use. */
static bool cores_from(int first, int count, cpu_set_t *part)
{
    cpu_set_t all;
    CPU_ZERO(part);
    if (sched_getaffinity(0, sizeof all, &all) != 0)
        return false;
    for (int k = 0, seen = 0; k < CPU_SETSIZE; k++)
        if (CPU_ISSET(k, &all) && seen++ >= first && seen <= first + count)
            CPU_SET(k, part);
    return CPU_COUNT(part) == count;
}

bool start_has_cores(int n, int cores)
{
    cpu_set_t part;
    return cores_from(0, n * cores, &part);
}

int start_count_cores(void)
{
    cpu_set_t all;
    if (sched_getaffinity(0, sizeof all, &all) == 0)
        return CPU_COUNT(&all);
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    return cores > 0 ? (int)cores : 1;
}

/* --- starting ---------------------------------------------------------------------- */

static void set_number(const char *name, int value)
{
    char text[16];
    snprintf(text, sizeof text, "%d", value);
    setenv(name, text, 1);
}

static void describe_job(const job *j, const place *p)
{
    if (j->joins) {
        unsetenv("TREK_RANK");
        unsetenv("TREK_WORLD_SIZE");
    } else {
        set_number("TREK_RANK", p->rank);
        set_number("TREK_WORLD_SIZE", j->processes);
    }
    set_number("TREK_LOCAL_RANK", p->local);
    set_number("TREK_LOCAL_WORLD_SIZE", j->locals);
    setenv("TREK_ADDRESS", j->address, 1);
    setenv("TREK_PORT", j->port, 1);
    setenv("TREK_TOKEN", j->token, 1);
    if (deaths >= 0 && fcntl(deaths, F_SETFD, 0) == 0)
        set_number("TREK_LAUNCHER_FD", deaths);
    if (p->again || j->joins)
        setenv("TREK_JOIN", j->joins ? "new" : "1", 1);
    else
        unsetenv("TREK_JOIN");
    int cores = j->cores ? j->cores : start_count_cores() / j->locals;
    if (!getenv("TREK_THREADS"))
        set_number("TREK_THREADS", cores > 1 ? cores : 1);
}

static bool redirect(const place *p)
{
    if ((p->out[0] >= 0 && dup2(p->out[0], STDOUT_FILENO) < 0) || (p->out[1] >= 0 && dup2(p->out[1], STDERR_FILENO) < 0))
        return false;
    int in = p->in == -1 ? open("/dev/null", O_RDONLY) : p->in;
    if (p->in == -2)
        return true;
    if (in < 0 || dup2(in, STDIN_FILENO) < 0)
        return false;
    if (in != STDIN_FILENO)
        close(in);
    return true;
}

/* Runs in the child and ends it. The reason of a failure goes through `report`. */
static void become(const job *j, const place *p, pid_t parent, int report)
{
    cpu_set_t cores;
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* if the launcher is killed, nothing is left behind */
    if (getppid() != parent)
        _exit(NOT_RUN);
    bool pinned = j->cores == 0 ||
                  (cores_from(p->local * j->cores, j->cores, &cores) && sched_setaffinity(0, sizeof cores, &cores) == 0);
    if (redirect(p) && pinned && (!j->folder || chdir(j->folder) == 0)) {
        describe_job(j, p);
        start_unblock();
        execvp(j->program[0], j->program);
    }
    int why = errno;
    (void)!write(report, &why, sizeof why);
    _exit(NOT_RUN);
}

/* Several may have ended before this is looked at, and the first failure decides the job's status. */
static void watch_end(int rank)
{
    int fd = ends < 0 ? -1 : (int)syscall(SYS_pidfd_open, processes[rank].pid, 0);
    struct epoll_event event = { .events = EPOLLIN, .data.u64 = (uint64_t)rank };
    bool added = fd >= 0 && fcntl(fd, F_SETFD, FD_CLOEXEC) == 0 && epoll_ctl(ends, EPOLL_CTL_ADD, fd, &event) == 0;
    if (!added && fd >= 0)
        close(fd);
    processes[rank].end = added ? fd : -1;
}

int start(const job *j, const place *p)
{
    int report[2], why = 0;
    if (pipe2(report, O_CLOEXEC) != 0)
        return errno;
    pid_t self = getpid(), pid = fork();
    if (pid == 0)
        become(j, p, self, report[1]);
    int failed = errno;
    close(report[1]);
    if (pid < 0) {
        why = failed;
    } else {
        processes[p->rank].pid = pid;
        watch_end(p->rank);
        while (read(report[0], &why, sizeof why) < 0 && errno == EINTR)
            ;
    }
    close(report[0]);
    return why;
}

/* --- while they run ---------------------------------------------------------------- */

bool start_runs(int rank) { return processes[rank].pid > 0; }

/* The state follows the program's name, which may contain anything. */
static bool is_stopped(pid_t pid)
{
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "re");
    size_t length = file ? fread(text, 1, sizeof text - 1, file) : 0;
    if (file)
        fclose(file);
    text[length] = '\0';
    const char *name_end = strrchr(text, ')');
    return name_end && strncmp(name_end, ") T", 3) == 0;
}

int start_count_stopped(void)
{
    int stopped = 0;
    for (int r = 0; r < MOST; r++)
        stopped += processes[r].pid > 0 && is_stopped(processes[r].pid);
    return stopped;
}

void start_send(int signal)
{
    for (int r = 0; r < MOST; r++)
        if (processes[r].pid > 0)
            kill(processes[r].pid, signal);
}

static int rank_of(pid_t pid)
{
    int r = 0;
    while (r < MOST && processes[r].pid != pid)
        r++;
    return r < MOST ? r : -1;
}

void start_send_orphans(int signal, bool (*spared)(pid_t pid))
{
    char path[64], text[4096];
    snprintf(path, sizeof path, "/proc/self/task/%d/children", (int)getpid());
    FILE *file = fopen(path, "re");
    if (!file)
        return;
    size_t length = fread(text, 1, sizeof text - 1, file);
    text[length] = '\0';
    fclose(file);
    char *end;
    for (char *at = text; *at; at = end) {
        long pid = strtol(at, &end, 10);
        if (end == at)
            break;
        if (pid > 1 && !(spared && spared((pid_t)pid)))
            kill((pid_t)pid, signal);
    }
}

/* Reaps the processes in the order in which they ended. */
static void reap_in_order(void (*ended)(void *arg, int rank, int status), void *arg)
{
    struct epoll_event event;
    while (ends >= 0 && epoll_wait(ends, &event, 1, 0) == 1) {
        int rank = (int)event.data.u64, status, fd = processes[rank].end;
        pid_t pid = processes[rank].pid;
        processes[rank].end = -1;
        epoll_ctl(ends, EPOLL_CTL_DEL, fd, NULL);
        close(fd);
        if (pid > 0 && waitpid(pid, &status, WNOHANG) == pid) {
            processes[rank].pid = 0;
            ended(arg, rank, status);
        }
    }
}

bool start_reap(void (*ended)(void *arg, int rank, int status), void (*other)(void *arg, pid_t pid, int status), void *arg)
{
    for (;;) {
        reap_in_order(ended, arg);
        siginfo_t next = { .si_pid = 0 };
        if (waitid(P_ALL, 0, &next, WEXITED | WNOHANG | WNOWAIT) != 0)
            return errno != ECHILD;
        if (next.si_pid == 0)
            return true;
        int status, rank = rank_of(next.si_pid);
        if (rank >= 0 && processes[rank].end >= 0) /* its turn comes */
            continue;
        if (waitpid(next.si_pid, &status, WNOHANG) != next.si_pid)
            continue;
        if (rank >= 0) {
            processes[rank].pid = 0;
            ended(arg, rank, status);
        } else if (other) {
            other(arg, next.si_pid, status);
        }
    }
}

void start_note_death(const char *line)
{
    static off_t noted;
    ssize_t written = deaths >= 0 ? pwrite(deaths, line, strlen(line), noted) : 0;
    noted += written > 0 ? written : 0;
}
