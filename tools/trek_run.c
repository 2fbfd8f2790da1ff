/* SPDX-License-Identifier: Apache-2.0 */
/* trek-run: starts the processes of a job on this machine, passes signals on, reaps
 * them, and ends with the status of the first that failed. Knows nothing of the library:
 * it tells the processes who they are by their environment. */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 1024, LINE = 16384, USAGE = 2, NOT_RUN = 126, NOT_FOUND = 127 };

static const char help[] =
    "usage: trek-run -n PROCESSES [options] [--] program [arguments]\n"
    "\n"
    "Starts PROCESSES copies of the program on this machine as the ranks of one job.\n"
    "\n"
    "  -n, --processes N        how many\n"
    "  -c, --cores-per-process N  pins each process to N cores of its own; otherwise they share\n"
    "                           all cores, each with its part of the threads (TREK_THREADS)\n"
    "  -p, --prefix             puts the rank in front of each line of output\n"
    "  -g, --grace SECONDS      how long the others may take to end by themselves once one has\n"
    "                           failed, before SIGTERM and later SIGKILL; 10 unless given\n"
    "  -m, --min-processes N    how many are enough: while N run on, or have ended with 0, one that fails\n"
    "                           does not end the others (trek_run_opts.min_processes); all unless given\n"
    "  -r, --restarts N         with --min-processes: one that fails is started again, N times in all, to join the\n"
    "                           others at their next epoch (TREK_JOIN=1); not once one has ended with 0; 0 unless given\n"
    "  -h, --help\n"
    "\n"
    "Each process finds TREK_RANK, TREK_WORLD_SIZE, TREK_LOCAL_RANK, TREK_ADDRESS, TREK_PORT, TREK_TOKEN\n"
    "and TREK_LAUNCHER_FD (a file that tells which processes have ended) in its environment. Rank 0 reads "
    "standard input, the others read nothing. SIGINT,\n"
    "SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 are passed on to all. Exit status: 0 if all ended with 0,\n"
    "or as many as are enough, else that of the first that failed (or that a signal ended just after:\n"
    "others fail by that); 128 + signal if a signal ended it; 2 for a wrong call, 126\n"
    "or 127 if the program cannot be run.\n";

typedef struct options {
    int processes, cores;  /* cores 0: not pinned */
    int enough;            /* 0: all */
    int restarts;
    double grace;
    bool prefix;
    char **program;        /* NULL-terminated */
} options;

/* One of a process's two outputs, read line by line. */
typedef struct stream {
    int fd, to;            /* fd -1: closed */
    size_t used;
    char line[LINE];
} stream;

typedef struct process {
    pid_t pid;             /* 0: has ended */
    int end;               /* a pidfd; -1: none */
    bool again;            /* it was started again */
    stream *streams;       /* two with --prefix */
} process;

static process processes[MOST];
static int running, first_failure; /* status of the latter; 0: none */
static int ended_well, restarted;
static bool stopping;          /* a signal has asked to end */
static sigset_t mask_before;   /* the processes' */
static int ends = -1;          /* tells of ranks that have ended, in the order in which they did; -1: unknown */
static char port_text[16], token[65];
static int first_failed = -1;  /* the rank */
static double first_at;        /* when, by now() */
static int deaths = -1; /* a file in memory, a line for each process that has ended: those that wait for it read it; -1: none */

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int wrong_call(const char *what, const char *which)
{
    fprintf(stderr, "trek-run: %s%s%s\ntrek-run --help tells how it is called\n", what, which ? ": " : "", which ? which : "");
    return USAGE;
}

/* --- the call ------------------------------------------------------------------- */

static bool read_number(const char *text, double least, double most, double *value)
{
    char *end;
    errno = 0;
    *value = text ? strtod(text, &end) : 0;
    return text && *text && *end == '\0' && errno == 0 && *value >= least && *value <= most;
}

static bool is(const char *argument, const char *brief, const char *name)
{
    return strcmp(argument, brief) == 0 || strcmp(argument, name) == 0;
}

/* 0, or the status to end with at once; -1: help was asked for. */
static int read_options(int argc, char **argv, options *o)
{
    double value;
    int k = 1;
    for (; k < argc && argv[k][0] == '-'; k++) {
        const char *option = argv[k];
        if (strcmp(option, "--") == 0) {
            k++;
            break;
        }
        if (is(option, "-h", "--help"))
            return -1;
        if (is(option, "-p", "--prefix")) {
            o->prefix = true;
            continue;
        }
        bool n = is(option, "-n", "--processes"), c = is(option, "-c", "--cores-per-process"), g = is(option, "-g", "--grace");
        bool m = is(option, "-m", "--min-processes"), r = is(option, "-r", "--restarts");
        if (!n && !c && !g && !m && !r)
            return wrong_call("no such option", option);
        const char *text = ++k < argc ? argv[k] : NULL;
        if (!read_number(text, g || r ? 0 : 1, g || r ? 1e6 : MOST, &value) || (!g && value != (int)value))
            return wrong_call(g   ? "--grace takes seconds"
                              : n ? "-n takes a number from 1 to 1024"
                              : m ? "--min-processes takes a number from 1 to 1024"
                              : r ? "--restarts takes a number from 0 to 1000000"
                                  : "--cores-per-process takes a number from 1 to 1024",
                              text);
        if (m)
            o->enough = (int)value;
        else if (r)
            o->restarts = (int)value;
        else if (n)
            o->processes = (int)value;
        else if (c)
            o->cores = (int)value;
        else
            o->grace = value;
    }
    if (o->processes == 0)
        return wrong_call("how many processes? -n is missing", NULL);
    if (o->enough > o->processes)
        return wrong_call("--min-processes is more than -n", NULL);
    if (o->restarts && !o->enough)
        return wrong_call("--restarts goes with --min-processes", NULL);
    if (k >= argc)
        return wrong_call("which program?", NULL);
    o->program = argv + k;
    return 0;
}

/* --- what all processes share ------------------------------------------------------ */

/* A port that is free now. */
static bool find_port(void)
{
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t size = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool found = fd >= 0 && bind(fd, (struct sockaddr *)&address, size) == 0 &&
                 getsockname(fd, (struct sockaddr *)&address, &size) == 0;
    if (fd >= 0)
        close(fd);
    snprintf(port_text, sizeof port_text, "%d", (int)ntohs(address.sin_port));
    return found;
}

static bool make_token(void)
{
    unsigned char bytes[32];
    if (getrandom(bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes)
        return false;
    for (size_t k = 0; k < sizeof bytes; k++)
        snprintf(token + 2 * k, 3, "%02x", bytes[k]);
    return true;
}

/* Of the cores that trek-run may use, those numbered [first, first + count). */
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

static int count_cores(void)
{
    cpu_set_t all;
    if (sched_getaffinity(0, sizeof all, &all) == 0)
        return CPU_COUNT(&all);
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    return cores > 0 ? (int)cores : 1;
}

/* --- starting ------------------------------------------------------------------------- */

static void set_number(const char *name, int value)
{
    char text[16];
    snprintf(text, sizeof text, "%d", value);
    setenv(name, text, 1);
}

static void describe_job(const options *o, int rank)
{
    set_number("TREK_RANK", rank);
    set_number("TREK_LOCAL_RANK", rank);
    set_number("TREK_WORLD_SIZE", o->processes);
    setenv("TREK_ADDRESS", "127.0.0.1", 1);
    setenv("TREK_PORT", port_text, 1);
    setenv("TREK_TOKEN", token, 1);
    if (deaths >= 0 && fcntl(deaths, F_SETFD, 0) == 0)
        set_number("TREK_LAUNCHER_FD", deaths);
    if (processes[rank].again)
        setenv("TREK_JOIN", "1", 1);
    else
        unsetenv("TREK_JOIN");
    int cores = o->cores ? o->cores : count_cores() / o->processes;
    if (!getenv("TREK_THREADS"))
        set_number("TREK_THREADS", cores > 1 ? cores : 1);
}

/* In the child; ends it. Why it could not run goes through `report`. */
static void become(const options *o, int rank, pid_t parent, const sigset_t *mask, int out[2], int report)
{
    cpu_set_t cores;
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* a launcher that is killed leaves nothing behind */
    if (getppid() != parent)
        _exit(NOT_RUN);
    if (out[0] >= 0 && (dup2(out[0], STDOUT_FILENO) < 0 || dup2(out[1], STDERR_FILENO) < 0))
        goto failed;
    if (rank > 0) {
        int nothing = open("/dev/null", O_RDONLY);
        if (nothing < 0 || dup2(nothing, STDIN_FILENO) < 0)
            goto failed;
        if (nothing != STDIN_FILENO)
            close(nothing);
    }
    if (o->cores > 0 && (!cores_from(rank * o->cores, o->cores, &cores) || sched_setaffinity(0, sizeof cores, &cores) != 0))
        goto failed;
    describe_job(o, rank);
    signal(SIGPIPE, SIG_DFL);
    sigprocmask(SIG_SETMASK, mask, NULL);
    execvp(o->program[0], o->program);
failed:;
    int why = errno;
    (void)!write(report, &why, sizeof why);
    _exit(NOT_RUN);
}

static bool make_streams(process *p, int out[2])
{
    p->streams = calloc(2, sizeof *p->streams);
    if (!p->streams)
        return false;
    for (int k = 0; k < 2; k++) {
        int ends[2];
        if (pipe2(ends, O_CLOEXEC) != 0)
            return false;
        fcntl(ends[0], F_SETFL, O_NONBLOCK);
        p->streams[k].fd = ends[0];
        p->streams[k].to = k == 0 ? STDOUT_FILENO : STDERR_FILENO;
        out[k] = ends[1];
    }
    return true;
}

/* Several may have ended before they are looked at, and the first failure is the job's. */
static void watch_end(int rank)
{
    int fd = ends < 0 ? -1 : (int)syscall(SYS_pidfd_open, processes[rank].pid, 0);
    struct epoll_event event = { .events = EPOLLIN, .data.u64 = (uint64_t)rank };
    bool added = fd >= 0 && fcntl(fd, F_SETFD, FD_CLOEXEC) == 0 && epoll_ctl(ends, EPOLL_CTL_ADD, fd, &event) == 0;
    if (added) {
        processes[rank].end = fd;
        return;
    }
    if (fd >= 0)
        close(fd);
    processes[rank].end = -1;
}

/* errno, or 0: it runs. */
static int start(const options *o, int rank)
{
    process *p = &processes[rank];
    int out[2] = { -1, -1 }, report[2], why = 0;
    if ((o->prefix && !make_streams(p, out)) || pipe2(report, O_CLOEXEC) != 0)
        return errno ? errno : ENOMEM;
    pid_t self = getpid(), pid = fork();
    if (pid == 0)
        become(o, rank, self, &mask_before, out, report[1]);
    int failed = errno;
    close(report[1]);
    for (int k = 0; k < 2; k++)
        if (out[k] >= 0)
            close(out[k]);
    if (pid < 0) {
        why = failed;
    } else {
        p->pid = pid;
        running++;
        watch_end(rank);
        while (read(report[0], &why, sizeof why) < 0 && errno == EINTR)
            ;
    }
    close(report[0]);
    return why;
}

/* --- output ------------------------------------------------------------------------------ */

static void write_all(int fd, const char *text, size_t bytes)
{
    while (bytes > 0) {
        ssize_t written = write(fd, text, bytes);
        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0)
            return;
        text += written;
        bytes -= (size_t)written;
    }
}

static void write_line(const stream *s, int rank, size_t length)
{
    char text[LINE + 32];
    int head = snprintf(text, 32, "[%d] ", rank);
    memcpy(text + head, s->line, length);
    size_t bytes = (size_t)head + length;
    if (text[bytes - 1] != '\n')
        text[bytes++] = '\n';
    write_all(s->to, text, bytes);
}

/* Passes on whole lines; what is left when the stream ends, too. */
static void read_stream(stream *s, int rank)
{
    while (s->fd >= 0) {
        ssize_t got = read(s->fd, s->line + s->used, LINE - s->used);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0 && errno == EAGAIN)
            return;
        s->used += got > 0 ? (size_t)got : 0;
        const char *end;
        while (s->used > 0 && ((end = memchr(s->line, '\n', s->used)) || s->used == LINE || got <= 0)) {
            size_t length = end ? (size_t)(end - s->line) + 1 : s->used;
            write_line(s, rank, length);
            memmove(s->line, s->line + length, s->used -= length);
        }
        if (got <= 0) {
            close(s->fd);
            s->fd = -1;
        }
    }
}

static void read_streams(const options *o)
{
    for (int r = 0; r < o->processes; r++)
        for (int k = 0; processes[r].streams && k < 2; k++)
            read_stream(&processes[r].streams[k], r);
}

/* --- while they run -------------------------------------------------------------------------- */

static void send_all(const options *o, int signal)
{
    for (int r = 0; r < o->processes; r++)
        if (processes[r].pid > 0)
            kill(processes[r].pid, signal);
}

/* Processes whose parents have gone are ours (subreaper): sends them the signal, too. */
static void send_orphans(int signal)
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
        if (pid > 1)
            kill((pid_t)pid, signal);
    }
}

/* One has failed, and too few are left. */
static bool has_failed(const options *o)
{
    return first_failure != 0 && running + ended_well < (o->enough ? o->enough : o->processes);
}

/* What it has written is passed on; what its children still write, is not. */
static void close_streams(process *p, int rank)
{
    for (int k = 0; p->streams && k < 2; k++) {
        read_stream(&p->streams[k], rank);
        if (p->streams[k].fd >= 0)
            close(p->streams[k].fd);
    }
    free(p->streams);
    p->streams = NULL;
}

/* While the others are at work. false: it is left at that. */
static bool start_again(const options *o, int rank)
{
    process *p = &processes[rank];
    if (restarted >= o->restarts || running == 0 || ended_well > 0 || stopping || has_failed(o))
        return false;
    restarted++;
    close_streams(p, rank);
    p->again = true;
    int why = start(o, rank);
    if (why != 0)
        fprintf(stderr, "trek-run: rank %d cannot be started again: %s\n", rank, strerror(why));
    return why == 0;
}

/* Who is killed closes connections before they can be waited for: a process that fails by that may be seen to end first. */
static bool was_the_cause(const options *o, int status)
{
    double soon = o->grace < 0.2 ? o->grace : 0.2; /* before others are ended from here */
    return WIFSIGNALED(status) && !stopping && first_failure < 128 && now() - first_at < soon;
}

static void note_end(const options *o, int rank, int status)
{
    char end[160];
    static off_t noted;
    bool failed_before = has_failed(o);
    processes[rank].pid = 0;
    running--;
    int code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    if (WIFSIGNALED(status))
        snprintf(end, sizeof end, "%d was ended by signal %d (%s)\n", rank, WTERMSIG(status), strsignal(WTERMSIG(status)));
    else
        snprintf(end, sizeof end, "%d ended with status %d\n", rank, code);
    ssize_t written = deaths >= 0 ? pwrite(deaths, end, strlen(end), noted) : 0;
    noted += written > 0 ? written : 0;
    ended_well += code == 0;
    bool is_cause = failed_before && was_the_cause(o, status);
    if (code == 0 || (failed_before && !is_cause))
        return;
    first_failure = first_failure && !is_cause ? first_failure : code;
    first_failed = rank;
    first_at = now();
    char then[64] = ""; /* its last words are passed on first: one line is one write */
    if (start_again(o, rank))
        snprintf(then, sizeof then, "; it is started again (%d of %d)", restarted, o->restarts);
    else if (running > 0 && !has_failed(o))
        snprintf(then, sizeof then, "; the others go on");
    else if (running > 0)
        snprintf(then, sizeof then, "; the others have %g s to end", o->grace);
    fprintf(stderr, "trek-run: rank %.*s%s\n", (int)strcspn(end, "\n"), end, then);
}

/* Ranks that have ended, one after the other as they did. */
static void reap_in_order(const options *o)
{
    struct epoll_event event;
    while (ends >= 0 && epoll_wait(ends, &event, 1, 0) == 1) {
        process *p = &processes[event.data.u64];
        int status, fd = p->end;
        p->end = -1;
        epoll_ctl(ends, EPOLL_CTL_DEL, fd, NULL);
        close(fd);
        if (p->pid > 0 && waitpid(p->pid, &status, WNOHANG) == p->pid)
            note_end(o, (int)event.data.u64, status);
    }
}

static int rank_of(const options *o, pid_t pid)
{
    int r = 0;
    while (r < o->processes && processes[r].pid != pid)
        r++;
    return r < o->processes ? r : -1;
}

/* false: no child is left at all. */
static bool reap(const options *o)
{
    for (;;) {
        reap_in_order(o);
        siginfo_t next = { .si_pid = 0 };
        if (waitid(P_ALL, 0, &next, WEXITED | WNOHANG | WNOWAIT) != 0)
            return errno != ECHILD;
        if (next.si_pid == 0)
            return true;
        int status, rank = rank_of(o, next.si_pid);
        if (rank >= 0 && processes[rank].end >= 0) /* its turn comes */
            continue;
        if (waitpid(next.si_pid, &status, WNOHANG) == next.si_pid && rank >= 0)
            note_end(o, rank, status);
    }
}

/* From the terminal all have it already: they are of one process group. */
static void pass_signal_on(const options *o, int signals)
{
    struct signalfd_siginfo info;
    while (read(signals, &info, sizeof info) == (ssize_t)sizeof info) {
        stopping = stopping || info.ssi_signo == SIGINT || info.ssi_signo == SIGTERM || info.ssi_signo == SIGHUP;
        if (info.ssi_signo != SIGCHLD && info.ssi_code != SI_KERNEL)
            send_all(o, (int)info.ssi_signo);
    }
}

static void wait_for_news(const options *o, int signals, double until)
{
    static struct pollfd watched[1 + 2 * MOST];
    nfds_t n = 0;
    watched[n++] = (struct pollfd){ .fd = signals, .events = POLLIN };
    for (int r = 0; r < o->processes; r++)
        for (int k = 0; processes[r].streams && k < 2; k++)
            if (processes[r].streams[k].fd >= 0)
                watched[n++] = (struct pollfd){ .fd = processes[r].streams[k].fd, .events = POLLIN };
    double left = until > 0 ? until - now() : -1;
    poll(watched, n, until > 0 ? (left > 0 ? (int)(left * 1000) + 1 : 0) : -1);
    pass_signal_on(o, signals);
    read_streams(o);
}

/* "ranks 0, 2 have" */
static void print_running(const options *o)
{
    int listed = 0;
    fprintf(stderr, "trek-run: rank%s ", running > 1 ? "s" : "");
    for (int r = 0; r < o->processes && listed < 16; r++)
        if (processes[r].pid > 0)
            fprintf(stderr, "%s%d", listed++ ? ", " : "", r);
    if (running > listed)
        fprintf(stderr, " and %d more", running - listed);
    fprintf(stderr, running > 1 ? " have" : " has");
}

/* Before they are ended. */
static void say_overdue(const options *o, bool terminated)
{
    if (running == 0)
        return;
    print_running(o);
    if (terminated)
        fprintf(stderr, " not ended 5 s after SIGTERM: SIGKILL\n");
    else
        fprintf(stderr, " not ended %g s after rank %d: SIGTERM\n", o->grace, first_failed);
}

/* Until nothing is left: the ranks, then whatever they have left behind. */
static void watch(const options *o, int signals)
{
    enum { WORKING, FAILED, TERMINATED, KILLED } state = WORKING;
    double until = 0;
    while (reap(o)) {
        if (state == WORKING && (has_failed(o) || running == 0)) {
            state = FAILED;
            until = now() + (running ? o->grace : 0);
        }
        if (state != WORKING && running == 0 && state < TERMINATED)
            until = now(); /* only orphans are left */
        if (state != WORKING && until > 0 && now() >= until) {
            if (state != KILLED)
                say_overdue(o, state == TERMINATED);
            send_all(o, state == FAILED ? SIGTERM : SIGKILL);
            send_all(o, SIGCONT); /* those that were stopped would not notice */
            if (running == 0 || state >= TERMINATED)
                send_orphans(state == FAILED ? SIGTERM : SIGKILL);
            until = now() + (state == FAILED ? (running ? 5 : 1) : 0.1); /* new orphans may appear as their parents go */
            state = state == FAILED ? TERMINATED : KILLED;
        }
        wait_for_news(o, signals, until);
    }
    read_streams(o);
}

int main(int argc, char **argv)
{
    options o = { .grace = 10 };
    int wrong = read_options(argc, argv, &o);
    if (wrong == -1)
        return fputs(help, stdout) < 0;
    if (wrong)
        return wrong;
    cpu_set_t cores;
    if (o.cores > 0 && !cores_from(0, o.cores * o.processes, &cores)) {
        fprintf(stderr, "trek-run: %d processes with %d cores each: there are %d cores\n", o.processes, o.cores, count_cores());
        return USAGE;
    }
    if (!find_port() || !make_token()) {
        fprintf(stderr, "trek-run: no free port or no random numbers: %s\n", strerror(errno));
        return 1;
    }
    sigset_t handled;
    sigemptyset(&handled);
    static const int passed[] = { SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGCHLD };
    for (size_t k = 0; k < sizeof passed / sizeof *passed; k++)
        sigaddset(&handled, passed[k]);
    sigprocmask(SIG_BLOCK, &handled, &mask_before);
    signal(SIGPIPE, SIG_IGN);
    int signals = signalfd(-1, &handled, SFD_CLOEXEC | SFD_NONBLOCK);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    ends = epoll_create1(EPOLL_CLOEXEC);
    deaths = memfd_create("trek-run", MFD_CLOEXEC);
    for (int r = 0; r < o.processes && signals >= 0; r++) {
        int why = start(&o, r);
        if (why == 0)
            continue;
        fprintf(stderr, "trek-run: rank %d: cannot run '%s': %s\n", r, o.program[0], strerror(why));
        first_failure = why == ENOENT ? NOT_FOUND : NOT_RUN;
        send_all(&o, SIGKILL);
        break;
    }
    if (signals < 0)
        return fprintf(stderr, "trek-run: signalfd: %s\n", strerror(errno)), 1;
    watch(&o, signals);
    return o.enough && ended_well >= o.enough ? 0 : first_failure;
}
