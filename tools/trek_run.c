/* SPDX-License-Identifier: Apache-2.0 */
/* trek-run: starts the processes of a job on this machine and on others, passes signals on, reaps them, and ends with
 * the status of the first that failed. It knows nothing of the library: it tells the processes who they are through
 * their environment. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tools/run_agent.h"
#include "tools/run_monitor.h"
#include "tools/run_options.h"
#include "tools/run_output.h"
#include "tools/run_remote.h"
#include "tools/run_secret.h"

#define AGAIN "; it is started again" /* in the form that its readers expect */
#define USUAL_SSH "ssh -o BatchMode=yes -o ControlMaster=no -o ForwardAgent=no -o ForwardX11=no -o ConnectTimeout=20"

typedef struct process {
    bool runs;
    const host *host;      /* NULL for this machine */
    int generation;        /* how often it was restarted */
    output *streams;       /* two, if its output comes through here */
} process;

static options o = { .grace = 10 };
static process processes[MOST];
static int running, first_failure; /* status of the latter; 0 for none */
static int ended_well, restarted;
static bool begun;             /* the processes have been started */
static bool hopeless;          /* one cannot be started at all, so no one continues */
static bool stopping;          /* a signal has requested the end */
static double interrupted;     /* when SIGINT first came; 0 for never */
static bool killing;           /* it has come again */
static char address[256], port[16], token[256];
static job all;
static int first_failed = -1;  /* the rank */
static double first_at;        /* when, by now() */

/* --- what all processes share ------------------------------------------------------ */

/* What a process is called in messages: those that come to a job are told their ranks there. */
static const char *noun(void) { return o.joins ? "process" : "rank"; }

/* Returns " on b" for a process of another machine. */
static const char *where(int rank)
{
    static char text[300];
    text[0] = '\0';
    if (processes[rank].host)
        snprintf(text, sizeof text, " on %s", processes[rank].host->name);
    return text;
}

/* Names the current folder as users call it, because other machines may know it by that name. */
static bool name_folder(char path[PATH_MAX])
{
    char here[PATH_MAX];
    struct stat a, b;
    const char *called = getenv("PWD");
    if (o.folder && o.folder[0] == '/')
        return snprintf(path, PATH_MAX, "%s", o.folder) < PATH_MAX;
    bool known = called && called[0] == '/' && stat(called, &a) == 0 && stat(".", &b) == 0 && a.st_dev == b.st_dev &&
                 a.st_ino == b.st_ino;
    if (!known && !getcwd(here, sizeof here))
        return false;
    return snprintf(path, PATH_MAX, "%s%s%s", known ? called : here, o.folder ? "/" : "", o.folder ? o.folder : "") < PATH_MAX;
}

/* --- starting ------------------------------------------------------------------------- */

static bool make_streams(int rank, int out[2])
{
    process *p = &processes[rank];
    p->streams = calloc(2, sizeof *p->streams);
    for (int k = 0; p->streams && k < 2; k++)
        p->streams[k].fd = p->streams[k].file = -1;
    for (int k = 0; p->streams && k < 2; k++) {
        int ends[2] = { -1, -1 }, to = o.quiet ? -1 : k == 0 ? STDOUT_FILENO : STDERR_FILENO;
        char head[320] = "";
        if (!p->host && pipe2(ends, O_CLOEXEC) != 0)
            return false;
        if (!p->host)
            fcntl(ends[0], F_SETFL, O_NONBLOCK);
        if (o.prefix)
            output_number(head, rank, to);
        output_begin(&p->streams[k], ends[0], to, head);
        out[k] = ends[1];
    }
    return p->streams && (!o.log_dir || output_files(p->streams, o.log_dir, rank));
}

/* Returns 0 if it runs or will be reported, otherwise errno. */
static int start_process(int rank)
{
    process *p = &processes[rank];
    place its = { .rank = rank, .local = rank, .again = p->generation > 0, .in = rank ? -1 : -2, .out = { -1, -1 } };
    int why = 0;
    for (int h = 0; h < o.hosts.n; h++)
        if (o.hosts.list[h].here)
            its.local = rank - o.hosts.list[h].first;
    if ((p->host || o.prefix || o.log_dir) && !make_streams(rank, its.out))
        why = errno ? errno : ENOMEM;
    if (why == 0 && p->host)
        remote_start(rank, p->generation);
    else if (why == 0)
        why = start(&all, &its);
    for (int k = 0; k < 2; k++)
        if (its.out[k] >= 0)
            close(its.out[k]);
    p->runs = p->host ? why == 0 : start_runs(rank);
    running += p->runs;
    return why;
}

/* --- while they run -------------------------------------------------------------------------- */

static void read_streams(void)
{
    for (int r = 0; r < o.processes; r++)
        for (int k = 0; processes[r].streams && k < 2; k++)
            output_read(&processes[r].streams[k]);
}

static void send_all(int signal)
{
    start_send(signal);
    remote_send(signal);
}

/* Returns whether one has failed and too few are left. */
static bool has_failed(void)
{
    return hopeless || (!o.joins && first_failure != 0 && running + ended_well < (o.enough ? o.enough : o.processes));
}

/* Passes on what it has written, but not what its children may still write. */
static void close_streams(process *p)
{
    for (int k = 0; p->streams && k < 2; k++) {
        output_read(&p->streams[k]);
        output_end(&p->streams[k]);
    }
    free(p->streams);
    p->streams = NULL;
}

/* Restarts a rank while the others are working, who may be others than those that were started here. Returns false if it is not
 * restarted. */
static bool start_again(int rank)
{
    process *p = &processes[rank];
    if (restarted >= o.restarts || (running == 0 && !o.joins) || ended_well > 0 || stopping || has_failed())
        return false;
    restarted++;
    close_streams(p);
    p->generation++;
    int why = start_process(rank);
    if (why != 0)
        fprintf(stderr, "trek-run: %s %d cannot be started again: %s\n", noun(), rank, strerror(why));
    return why == 0;
}

/* A killed process closes its connections before it can be waited for, so a process that fails as a consequence may
 * be seen to end first. */
static bool was_the_cause(int status)
{
    double soon = o.grace < 0.2 ? o.grace : 0.2; /* before others are ended from here */
    return WIFSIGNALED(status) && !stopping && first_failure < 128 && now() - first_at < soon;
}

/* Tells processes that wait for others. */
static void tell_end(const char *line)
{
    start_note_death(line);
    remote_note_death(line);
}

/* `how` is NULL, or what is known instead of a status. */
static void note_end(int rank, int status, const char *how)
{
    char end[512];
    bool failed_before = has_failed();
    processes[rank].runs = false;
    running--;
    int code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    if (how)
        snprintf(end, sizeof end, "%d%s %s\n", rank, where(rank), how);
    else if (WIFSIGNALED(status))
        snprintf(end, sizeof end, "%d%s was ended by signal %d (%s)\n", rank, where(rank), WTERMSIG(status),
                 strsignal(WTERMSIG(status)));
    else
        snprintf(end, sizeof end, "%d%s ended with status %d\n", rank, where(rank), code);
    ended_well += code == 0;
    bool is_cause = failed_before && was_the_cause(status);
    if (code == 0 || (failed_before && !is_cause)) {
        tell_end(end);
        return;
    }
    first_failure = first_failure && !is_cause ? first_failure : code;
    first_failed = rank;
    first_at = now();
    char then[64] = ""; /* its last output is passed on first; one line is one write */
    bool again = start_again(rank);
    if (again)
        snprintf(end + strcspn(end, "\n"), sizeof end - strcspn(end, "\n"), AGAIN "\n");
    tell_end(end);
    end[strcspn(end, ";\n")] = '\0';
    if (again)
        snprintf(then, sizeof then, AGAIN " (%d of %d)", restarted, o.restarts);
    else if (running > 0 && !has_failed())
        snprintf(then, sizeof then, "; the others continue");
    else if (running > 0)
        snprintf(then, sizeof then, "; the others have %g s to end", o.grace);
    fprintf(stderr, "trek-run: %s %s%s\n", noun(), end, then);
}

/* --- other machines ---------------------------------------------------------------------------- */

static void cannot_run(int rank, int why)
{
    fprintf(stderr, "trek-run: %s %d%s: cannot run '%s': %s\n", noun(), rank, where(rank), o.program[0], strerror(why));
    first_failure = why == ENOENT ? NOT_FOUND : NOT_RUN;
    hopeless = true;
    send_all(SIGKILL);
}

static void remote_wrote(int rank, int generation, int which, const char *bytes, size_t count)
{
    process *p = &processes[rank];
    if (!p->streams || p->generation != generation)
        return;
    if (count == 0)
        output_end(&p->streams[which]);
    else
        output_feed(&p->streams[which], bytes, count);
}

static void remote_failed(int rank, int why)
{
    char end[64];
    snprintf(end, sizeof end, "%d cannot be started again\n", rank);
    if (processes[rank].generation > 0) {
        tell_end(end);
        fprintf(stderr, "trek-run: %s %d%s cannot be started again: %s\n", noun(), rank, where(rank), strerror(why));
    } else if (first_failure == 0)
        cannot_run(rank, why);
}

/* Of a process that was lost, nothing comes beyond the lines that it has begun. */
static void remote_ended(int rank, int status, const char *how)
{
    for (int k = 0; how && processes[rank].streams && k < 2; k++)
        output_end(&processes[rank].streams[k]);
    note_end(rank, status, how);
}

static void remote_refused(void)
{
    if (first_failure == 0)
        first_failure = 1;
    hopeless = true;
    send_all(SIGKILL);
}

static bool begin_remote(char folder[PATH_MAX])
{
    char own[PATH_MAX];
    const char *ssh = getenv("TREK_RUN_SSH");
    ssize_t length = readlink("/proc/self/exe", own, sizeof own - 1);
    own[length > 0 ? length : 0] = '\0';
    const remote_opts opts = { .ssh = o.ssh ? o.ssh : ssh && *ssh ? ssh : USUAL_SSH,
                               .trek_run = strdup(o.remote_trek_run ? o.remote_trek_run : own),
                               .folder = folder,
                               .travels = o.travels,
                               .wrote = remote_wrote,
                               .ended = remote_ended,
                               .failed = remote_failed,
                               .refused = remote_refused };
    for (int h = 0; h < o.hosts.n; h++)
        for (int r = 0; r < o.hosts.list[h].processes && !o.hosts.list[h].here; r++)
            processes[o.hosts.list[h].first + r].host = &o.hosts.list[h];
    return opts.trek_run && remote_begin(&o.hosts, &opts);
}

/* All machines have been reached: the job's meeting point is known, and it begins. */
static void begin(void)
{
    begun = true;
    if (o.hosts.n > 0 && !remote_find_address(address, port)) {
        first_failure = 1;
        return;
    }
    remote_set_job(&all);
    for (int r = 0; r < o.processes; r++) {
        int why = start_process(r);
        if (why == 0)
            continue;
        cannot_run(r, why);
        break;
    }
}

/* --- the loop ------------------------------------------------------------------------------------ */

static void ended_here(void *arg, int rank, int status)
{
    (void)arg;
    note_end(rank, status, NULL);
}

static void ended_other(void *arg, pid_t pid, int status)
{
    (void)arg;
    remote_reaped(pid, status);
}

/* Returns whether the user is impatient: a second Ctrl-C on a terminal. Two at the same time may be one signal that
 * came in two ways. */
static bool is_second_interrupt(void)
{
    double time = now();
    if (interrupted > 0 && time - interrupted > 0.3)
        return true;
    interrupted = interrupted > 0 ? interrupted : time;
    return false;
}

/* From a terminal, all processes of this machine have received it already, because they are in one process group. */
static void pass_signal_on(int signals)
{
    struct signalfd_siginfo info;
    while (read(signals, &info, sizeof info) == (ssize_t)sizeof info) {
        int number = (int)info.ssi_signo;
        bool ends = number == SIGINT || number == SIGTERM || number == SIGHUP;
        if (number == SIGCHLD)
            continue;
        stopping = stopping || ends;
        if (ends && !begun && first_failure == 0)
            first_failure = 128 + number;
        if (ends)
            remote_give_up();
        if (number == SIGINT && is_second_interrupt()) {
            if (!killing)
                fprintf(stderr, "trek-run: SIGINT has come again: SIGKILL\n");
            killing = true;
            send_all(SIGKILL);
            continue;
        }
        remote_send(number);
        if (info.ssi_code != SI_KERNEL)
            start_send(number);
    }
}

static void wait_for_news(int signals, double until)
{
    static struct pollfd watched[2 + 5 * MOST];
    nfds_t n = 0;
    watched[n++] = (struct pollfd){ .fd = signals, .events = POLLIN };
    for (int r = 0; r < o.processes; r++)
        for (int k = 0; processes[r].streams && k < 2; k++)
            if (processes[r].streams[k].fd >= 0)
                watched[n++] = (struct pollfd){ .fd = processes[r].streams[k].fd, .events = POLLIN };
    if (o.hosts.n > 0) {
        n += remote_poll(watched + n);
        until = until > 0 && until < now() + 1 ? until : now() + 1;
    }
    double left = until > 0 ? until - now() : -1;
    poll(watched, n, until > 0 ? (left > 0 ? (int)(left * 1000) + 1 : 0) : -1);
    pass_signal_on(signals);
    read_streams();
    if (o.hosts.n > 0)
        remote_serve();
}

/* Prints "ranks 0, 2 have". */
static void print_running(void)
{
    int listed = 0;
    fprintf(stderr, "trek-run: %s%s ", noun(), running <= 1 ? "" : o.joins ? "es" : "s");
    for (int r = 0; r < o.processes && listed < 16; r++)
        if (processes[r].runs)
            fprintf(stderr, "%s%d", listed++ ? ", " : "", r);
    if (running > listed)
        fprintf(stderr, " and %d more", running - listed);
    fprintf(stderr, running > 1 ? " have" : " has");
}

/* Called before they are ended. */
static void say_overdue(bool terminated)
{
    if (running == 0)
        return;
    print_running();
    if (terminated)
        fprintf(stderr, " not ended 5 s after SIGTERM: SIGKILL\n");
    else
        fprintf(stderr, " not ended %g s after %s %d: SIGTERM\n", o.grace, noun(), first_failed);
}

/* The other processes have finished, and the remaining ones are stopped. Returns when this will have lasted for the
 * grace time, or 0 if it is not the case. */
static double when_abandoned(void)
{
    static double since; /* 0 if it was not the case */
    bool stopped = ended_well > 0 && running > 0 && start_count_stopped() + remote_count_stopped() == running;
    since = !stopped ? 0 : since > 0 ? since : now();
    return stopped ? since + o.grace : 0;
}

static void say_abandoned(void)
{
    print_running();
    fprintf(stderr, " been stopped for %g s, and the others have ended: SIGTERM\n", o.grace);
}

/* Runs until nothing is left: the ranks, then everything they have left behind, here and, through the agents, there. */
static void watch(int signals)
{
    enum { WORKING, FAILED, TERMINATED, KILLED } state = WORKING;
    double until = 0;
    while (start_reap(ended_here, ended_other, NULL)) {
        if (!begun && first_failure == 0 && remote_all_are_here())
            begin();
        bool waits = !begun && first_failure == 0;
        if (state == WORKING && !waits && (has_failed() || running == 0)) {
            state = FAILED;
            until = now() + (running ? o.grace : 0);
            remote_give_up();
        }
        double abandoned = state == WORKING ? when_abandoned() : 0;
        if (abandoned > 0 && now() >= abandoned) {
            say_abandoned();
            send_all(SIGTERM);
            send_all(SIGCONT);
            until = now() + 5;
            state = TERMINATED;
        }
        if (begun && ended_well > 0)
            remote_give_up(); /* nothing is restarted from then on */
        if (state != WORKING && running == 0)
            remote_quit();
        if (state != WORKING && running == 0 && state < TERMINATED)
            until = now(); /* only orphans are left */
        if (state != WORKING && until > 0 && now() >= until) {
            if (state != KILLED)
                say_overdue(state == TERMINATED);
            send_all(state == FAILED ? SIGTERM : SIGKILL);
            send_all(SIGCONT); /* stopped processes would not notice */
            if (running == 0 || state >= TERMINATED)
                start_send_orphans(state == FAILED ? SIGTERM : SIGKILL, remote_needs);
            until = now() + (state == FAILED ? (running ? 5 : 1) : 0.1); /* new orphans may appear as their parents end */
            state = state == FAILED ? TERMINATED : KILLED;
        }
        wait_for_news(signals, state == WORKING && abandoned > 0 ? abandoned : until);
    }
    read_streams();
}

/* Prints what would run, where, and how the machines would be reached. */
static int say_plan(const char *folder)
{
    for (int h = 0; h < o.hosts.n || h == 0; h++) {
        const host *its = o.hosts.n ? &o.hosts.list[h] : NULL;
        int n = its ? its->processes : o.processes, first = its ? its->first : 0;
        printf(n > 1 ? "%s%s %d to %d" : "%s%s %d", noun(), n <= 1 ? "" : o.joins ? "es" : "s", first, first + n - 1);
        printf(" on %s in %s:", its ? its->name : "this machine", folder);
        for (char **word = o.program; *word; word++)
            printf(" %s", *word);
        printf("\n");
    }
    return ferror(stdout) || fflush(stdout) != 0;
}

/* Returns 0, or the status to end with. */
static int prepare(char folder[PATH_MAX])
{
    struct stat there;
    bool here = o.hosts.n == 0;
    int locals = here ? o.processes : 0;
    for (int h = 0; h < o.hosts.n; h++)
        if (o.hosts.list[h].here) {
            here = true;
            locals = o.hosts.list[h].processes;
        }
    if (here && o.cores > 0 && !start_has_cores(locals, o.cores)) {
        fprintf(stderr, "trek-run: %d processes with %d cores each: this machine has %d cores\n", locals, o.cores,
                start_count_cores());
        return USAGE;
    }
    bool named = name_folder(folder) || (o.hosts.n == 0 && !o.folder);
        /* a folder that has gone is acceptable unless someone needs its name */
    if (!named || (here && o.folder && (stat(folder, &there) != 0 || access(folder, X_OK) != 0))) {
        fprintf(stderr, "trek-run: the folder %s: %s\n", folder, strerror(errno));
        return USAGE;
    }
    if (o.dry_run)
        return 0;
    if (o.log_dir && !output_folder(o.log_dir)) {
        fprintf(stderr, "trek-run: --log-dir %s: %s\n", o.log_dir, strerror(errno));
        return USAGE;
    }
    if (!monitor_prepare(o.monitor, o.log_dir, o.program[0]))
        return 1;
    snprintf(address, sizeof address, "%s", o.address ? o.address : o.hosts.n ? "" : "127.0.0.1");
    snprintf(port, sizeof port, "%s", o.port ? o.port : "");
    if (o.hosts.n == 0 && !o.port && !start_find_port(port)) {
        fprintf(stderr, "trek-run: no free port: %s\n", strerror(errno));
        return 1;
    }
    if (!secret_find(o.joins, token, sizeof token))
        return 1;
    all = (job){ .processes = o.processes, .joins = o.joins, .locals = locals, .cores = o.cores, .address = address, .port = port,
                 .token = token,
                 .folder = o.folder ? folder : NULL, .program = o.program };
    return 0;
}

static int say_help(void)
{
    bool said = true;
    for (int k = 0; options_help[k] && said; k++)
        said = fputs(options_help[k], stdout) >= 0;
    return !said;
}

int main(int argc, char **argv)
{
    static char folder[PATH_MAX];
    int wrong = options_read(argc, argv, &o);
    if (wrong)
        return wrong;
    if (o.help)
        return say_help();
    if (o.agent)
        return agent_run();
    wrong = prepare(folder);
    if (wrong)
        return wrong;
    if (o.dry_run)
        return say_plan(folder);
    int signals = start_begin();
    if (signals < 0)
        return fprintf(stderr, "trek-run: signalfd: %s\n", strerror(errno)), 1;
    if (o.monitor)
        monitor_start(o.page);
    if (o.hosts.n == 0)
        begin();
    else if (!begin_remote(folder))
        first_failure = 1;
    else if (remote_all_are_here())
        begin();
    watch(signals);
    int enough = o.joins ? o.processes : o.enough;
    return enough && ended_well >= enough ? 0 : first_failure;
}
