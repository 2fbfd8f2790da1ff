/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/run_agent.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "tools/run_start.h"
#include "tools/run_wire.h"

enum { PIECE = 16384, ENOUGH_QUEUED = 1 << 20, BEAT_S = 5 };

typedef struct child {
    int streams[2];        /* -1 if closed */
    int generation;
} child;

static child children[MOST];
static wire launcher;
static job task;
static struct {
    int rank, fd;          /* the rank that reads, and the pipe to it; fd is -1 if it reads nothing */
    char *data;
    size_t used, size;
    bool ends;             /* nothing more will come */
} input = { .fd = -1 };
static bool quits, lost;   /* all have ended; the launcher has gone */
static double spoken;      /* when something was last sent */

static void say(int type, int rank, const void *data, size_t bytes)
{
    wire_send(&launcher, type, rank, data, bytes);
    spoken = now();
}

static void say_number(int type, int rank, long number)
{
    wire_send_numbers(&launcher, type, rank, number, 0);
    spoken = now();
}

static void refuse(const char *what, const char *why)
{
    char text[4400];
    say(WIRE_REFUSED, 0, text, (size_t)snprintf(text, sizeof text, "%.4000s: %.300s", what, why));
}

static void introduce(void)
{
    char machine[300], port[16];
    const char *connection = getenv("SSH_CONNECTION");
    static const char hello[] = "\n" WIRE_HELLO WIRE_VERSION "\n";
    wire_texts t = { 0 };
    start_machine(machine, sizeof machine);
    wire_send_bytes(&launcher, hello, sizeof hello - 1);
    wire_texts_add(&t, 'm', machine);
    wire_texts_add(&t, 's', connection ? connection : "");
    wire_texts_add(&t, 'p', start_find_port(port) ? port : "");
    say(WIRE_MACHINE, 0, t.data, t.used);
    free(t.data);
}

/* --- what processes write and read --------------------------------------------------------- */

static void close_stream(int rank, int which, bool tell)
{
    child *c = &children[rank];
    char head = (char)(2 * (c->generation & 63) + which);
    if (c->streams[which] < 0)
        return;
    close(c->streams[which]);
    c->streams[which] = -1;
    if (tell)
        say(WIRE_OUTPUT, rank, &head, 1);
}

/* Reads what is available, at most `most` bytes. */
static void read_stream(int rank, int which, size_t most)
{
    char bytes[1 + PIECE];
    child *c = &children[rank];
    bytes[0] = (char)(2 * (c->generation & 63) + which);
    for (size_t total = 0; c->streams[which] >= 0 && total < most;) {
        ssize_t got = read(c->streams[which], bytes + 1, PIECE);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0 && errno == EAGAIN)
            return;
        if (got <= 0)
            close_stream(rank, which, true);
        else
            say(WIRE_OUTPUT, rank, bytes, (size_t)got + 1);
        total += got > 0 ? (size_t)got : 0;
    }
}

static void close_input(void)
{
    if (input.fd >= 0)
        close(input.fd);
    input.fd = -1;
    input.used = 0;
    input.ends = false;
}

static void pass_input_on(void)
{
    while (input.fd >= 0 && input.used > 0) {
        ssize_t written = write(input.fd, input.data, input.used);
        if (written < 0 && errno == EINTR)
            continue;
        if (written < 0 && errno == EAGAIN)
            return;
        if (written <= 0) { /* nobody reads it */
            close_input();
            return;
        }
        memmove(input.data, input.data + written, input.used -= (size_t)written);
        say_number(WIRE_TAKEN, input.rank, (long)written);
    }
    if (input.ends)
        close_input();
}

static void take_input(const frame *f)
{
    if (input.fd < 0 || input.rank != f->rank)
        return;
    input.ends |= f->bytes == 0;
    if (input.used + f->bytes > input.size) {
        char *more = realloc(input.data, (input.used + f->bytes) * 2);
        if (!more) {
            close_input();
            return;
        }
        input.data = more;
        input.size = (input.used + f->bytes) * 2;
    }
    if (f->bytes > 0)
        memcpy(input.data + input.used, f->data, f->bytes);
    input.used += f->bytes;
    pass_input_on();
}

/* --- what the launcher asks for --------------------------------------------------------------- */

/* Makes pipes for what it writes, and for its input if it is the process that reads; p gets its ends. Returns false
 * and errno on failure. */
static bool make_pipes(place *p)
{
    child *c = &children[p->rank];
    int ends[2];
    for (int k = 0; k < 2; k++) {
        close_stream(p->rank, k, false);
        if (pipe2(ends, O_CLOEXEC) != 0)
            return false;
        fcntl(ends[0], F_SETFL, O_NONBLOCK);
        c->streams[k] = ends[0];
        p->out[k] = ends[1];
    }
    if (p->rank > 0)
        return true;
    close_input();
    if (pipe2(ends, O_CLOEXEC) != 0)
        return false;
    fcntl(ends[1], F_SETFL, O_NONBLOCK);
    input.rank = p->rank;
    input.fd = ends[1];
    p->in = ends[0];
    return true;
}

static void start_child(const frame *f)
{
    place p = { .rank = f->rank, .local = (int)wire_number(f, 0), .again = wire_number(f, 1) > 0, .in = -1, .out = { -1, -1 } };
    int why = task.program ? 0 : EPROTO;
    if (start_runs(p.rank))
        return;
    if (why == 0 && !make_pipes(&p))
        why = errno;
    children[p.rank].generation = (int)wire_number(f, 1);
    if (why == 0)
        why = start(&task, &p);
    for (int k = 0; k < 2; k++)
        if (p.out[k] >= 0)
            close(p.out[k]);
    if (p.in >= 0)
        close(p.in);
    if (why == 0)
        return;
    say_number(WIRE_FAILED, p.rank, why);
    if (!start_runs(p.rank))
        say_number(WIRE_END, p.rank, NOT_RUN << 8);
}

static int count_texts(const frame *f, char letter)
{
    int count = 0;
    for (const char *t = NULL; (t = wire_texts_next(f, t));)
        count += *t == letter;
    return count;
}

/* Sets a variable from "NAME=VALUE". */
static void set_variable(char *text)
{
    char *equals = strchr(text, '=');
    if (!equals)
        return;
    *equals = '\0';
    setenv(text, equals + 1, 1);
}

static bool take_texts(const frame *f)
{
    int arguments = 0, joins = 0;
    for (const char *t = NULL; (t = wire_texts_next(f, t));) {
        int *number = *t == 'j' ? &joins : *t == 'n' ? &task.processes : *t == 'l' ? &task.locals : *t == 'c' ? &task.cores
            : NULL;
        const char **word = *t == 'f' ? &task.folder : *t == 'h' ? &task.address : *t == 'p' ? &task.port
            : *t == 't' ? &task.token : NULL;
        char *value = number ? NULL : strdup(t + 1);
        if (!number && !value)
            return false;
        if (number)
            *number = atoi(t + 1);
        else if (*t == 'e')
            set_variable(value);
        if (*t == 'a')
            task.program[arguments++] = value;
        else if (word && !*word)
            *word = value;
        else
            free(value);
    }
    task.joins = joins != 0;
    return true;
}

/* Called once. What it points to stays valid until the end. */
static void take_job(const frame *f)
{
    char text[64];
    if (task.program)
        return;
    int arguments = count_texts(f, 'a');
    task.program = calloc((size_t)arguments + 1, sizeof *task.program);
    bool whole = arguments > 0 && task.program && take_texts(f) && task.processes > 0 && task.locals > 0 && task.address &&
                 task.port && task.token;
    if (!whole)
        refuse("what trek-run requests", "it is not a job");
    else if (task.folder && chdir(task.folder) != 0)
        refuse(task.folder, strerror(errno));
    free((char *)task.folder);
    task.folder = NULL;
    snprintf(text, sizeof text, "%d processes with %d cores each", task.locals, task.cores);
    if (whole && task.cores > 0 && !start_has_cores(task.locals, task.cores)) {
        char why[64];
        snprintf(why, sizeof why, "there are %d cores", start_count_cores());
        refuse(text, why);
    }
}

static void take(const frame *f)
{
    char line[300];
    switch (f->type) {
    case WIRE_JOB:
        take_job(f);
        break;
    case WIRE_START:
        start_child(f);
        break;
    case WIRE_SIGNAL:
        start_send((int)wire_number(f, 0));
        break;
    case WIRE_INPUT:
        take_input(f);
        break;
    case WIRE_DEATH:
        snprintf(line, sizeof line, "%.*s", (int)f->bytes, f->data);
        start_note_death(line);
        break;
    case WIRE_QUIT:
        quits = true;
        break;
    default:
        break;
    }
}

/* --- the loop ------------------------------------------------------------------------------------ */

static void note_end(void *arg, int rank, int status)
{
    (void)arg;
    for (int k = 0; k < 2; k++) /* its last output comes first */
        read_stream(rank, k, ENOUGH_QUEUED);
    if (input.fd >= 0 && input.rank == rank)
        close_input();
    say_number(WIRE_END, rank, status);
}

static void pass_signals_on(int signals)
{
    struct signalfd_siginfo info;
    while (read(signals, &info, sizeof info) == (ssize_t)sizeof info)
        if (info.ssi_signo != SIGCHLD)
            start_send((int)info.ssi_signo);
}

static void say_stopped(void)
{
    static int said;
    int stopped = start_count_stopped();
    if (stopped != said)
        say_number(WIRE_STOPPED, 0, stopped);
    said = stopped;
}

static void hear(void)
{
    frame f;
    bool bad = false;
    lost = !wire_fill(&launcher) || lost;
    while (wire_next(&launcher, &f, &bad))
        take(&f);
    lost = lost || bad || launcher.out < 0;
}

static void wait_for_news(int signals, double until)
{
    static struct pollfd watched[4 + 2 * MOST];
    nfds_t n = 0;
    bool full = wire_queued(&launcher) > ENOUGH_QUEUED;
    watched[n++] = (struct pollfd){ .fd = signals, .events = POLLIN };
    watched[n++] = (struct pollfd){ .fd = lost ? -1 : launcher.in, .events = POLLIN };
    watched[n++] = (struct pollfd){ .fd = wire_queued(&launcher) ? launcher.out : -1, .events = POLLOUT };
    watched[n++] = (struct pollfd){ .fd = input.used ? input.fd : -1, .events = POLLOUT };
    for (int r = 0; r < MOST && !full; r++)
        for (int k = 0; k < 2; k++)
            if (children[r].streams[k] >= 0)
                watched[n++] = (struct pollfd){ .fd = children[r].streams[k], .events = POLLIN };
    double left = until - now();
    poll(watched, n, left > 0 ? (int)(left * 1000) + 1 : 0);
    pass_signals_on(signals);
    if (watched[1].revents)
        hear();
    wire_flush(&launcher);
    pass_input_on();
    for (int r = 0; r < MOST && !full; r++)
        for (int k = 0; k < 2; k++)
            read_stream(r, k, 4 * PIECE);
    say_stopped();
    if (now() - spoken >= BEAT_S && wire_queued(&launcher) == 0)
        say(WIRE_ALIVE, 0, NULL, 0);
}

/* Sends what is still to be sent. It does not wait long for a launcher that does not listen. */
static int leave(void)
{
    for (double until = now() + 5; !lost && wire_queued(&launcher) > 0 && launcher.out >= 0 && now() < until;) {
        struct pollfd out = { .fd = launcher.out, .events = POLLOUT };
        poll(&out, 1, 100);
        wire_flush(&launcher);
    }
    return lost;
}

int agent_run(void)
{
    double kill_at = 0; /* when orphans that were asked to end are killed */
    int signals = start_begin();
    if (signals < 0)
        return 1;
    for (int r = 0; r < MOST; r++)
        children[r] = (child){ .streams = { -1, -1 } };
    for (int k = 0; k < 2; k++)
        fcntl(k, F_SETFL, fcntl(k, F_GETFL) | O_NONBLOCK);
    wire_begin(&launcher, STDIN_FILENO, STDOUT_FILENO);
    introduce();
    for (;;) {
        bool some = start_reap(note_end, NULL, NULL);
        if ((quits || lost) && !some)
            return leave();
        if (quits && kill_at == 0) {
            start_send_orphans(SIGTERM, NULL);
            kill_at = now() + 1;
        }
        if (lost || (quits && now() >= kill_at))
            start_send_orphans(SIGKILL, NULL); /* new orphans may appear as their parents end */
        wait_for_news(signals, now() + (lost || quits ? 0.1 : 1));
    }
}
