/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/run_remote.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tensor/plain_text.h"
#include "tools/run_output.h"

enum { HELLO_S = 120, SILENCE_S = 30, AGAIN_S = 5, QUIT_S = 10, CLOSE_S = 2, INPUT_WINDOW = 64 << 10 };

typedef struct agent {
    enum { NONE, WAITS, CONNECTS, SPEAKS, LOST } state; /* WAITS: until the next attempt; SPEAKS: after its hello */
    pid_t pid;             /* of ssh; 0 if there is none */
    wire wire;
    output *errors;        /* the messages of ssh */
    double until;          /* WAITS: when it is tried again; CONNECTS: the deadline; later: when ssh is killed, 0 for never */
    double heard;
    bool knows_job, before; /* before: it was reached once */
    int tries;             /* since it was last reached */
    int stopped;           /* of its processes, as it last said */
    char machine[300], connection[200], port[16];
} agent;

static const char NOT_AGAIN[] = "was not reached again";
static const hosts *all;
static agent agents[MOST];
static remote_opts opts;
static const job *asked;
static char *travels_always[] = { NULL };
static struct {
    bool runs;             /* it was requested and has not ended */
    int generation;
} ranks[MOST];
static bool quits;
static struct {
    bool ended;            /* there is no more input */
    long sent;             /* bytes not read yet */
} input;

static int host_of(int rank)
{
    int h = 0;
    while (h < all->n && rank >= all->list[h].first + all->list[h].processes)
        h++;
    return h;
}

static agent *agent_of(int rank) { return &agents[host_of(rank)]; }
static const host *host_at(const agent *a) { return &all->list[a - agents]; }

/* --- connections ------------------------------------------------------------------------------- */

/* Quotes a text as one word for a shell. */
static void quote(const char *text, char *to, size_t size)
{
    size_t used = 0;
    to[used++] = '\'';
    for (const char *c = text; *c && used + 6 < size; c++)
        used += (size_t)snprintf(to + used, size - used, *c == '\'' ? "'\\''" : "%c", *c);
    to[used++] = '\'';
    to[used] = '\0';
}

/* Runs in the child and ends it. There is no terminal: its Ctrl-C is for the processes, and nobody could answer a
 * question from ssh. */
static void become_ssh(const char *name, pid_t parent, int in, int out, int errors)
{
    char command[8192], path[6000];
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(NOT_RUN);
    setsid();
    dup2(in, STDIN_FILENO);
    dup2(out, STDOUT_FILENO);
    dup2(errors, STDERR_FILENO);
    quote(opts.trek_run, path, sizeof path);
    char there[6100];
    snprintf(there, sizeof there, "%s --agent", path);
    snprintf(command, sizeof command, "exec %s \"$@\"", opts.ssh);
    start_unblock();
    execl("/bin/sh", "sh", "-c", command, "trek-run", name, there, (char *)NULL);
    _exit(NOT_FOUND);
}

/* Returns false and errno on failure. */
static bool connect_to(agent *a)
{
    int pipes[3][2]; /* for its input, its output and its messages */
    char label[320];
    if (!a->errors)
        a->errors = calloc(1, sizeof *a->errors);
    if (!a->errors)
        return false;
    for (int k = 0; k < 3; k++)
        if (pipe2(pipes[k], O_CLOEXEC) != 0) {
            while (k-- > 0)
                close(pipes[k][0]), close(pipes[k][1]);
            return false;
        }
    pid_t self = getpid();
    a->pid = fork();
    if (a->pid == 0)
        become_ssh(host_at(a)->name, self, pipes[0][0], pipes[1][1], pipes[2][1]);
    close(pipes[0][0]);
    close(pipes[1][1]);
    close(pipes[2][1]);
    fcntl(pipes[0][1], F_SETFL, O_NONBLOCK);
    fcntl(pipes[1][0], F_SETFL, O_NONBLOCK);
    fcntl(pipes[2][0], F_SETFL, O_NONBLOCK);
    snprintf(label, sizeof label, "trek-run: %s: ", host_at(a)->name);
    output_begin(a->errors, pipes[2][0], STDERR_FILENO, label);
    wire_begin(&a->wire, pipes[1][0], pipes[0][1]);
    a->state = CONNECTS;
    a->knows_job = false;
    a->until = now() + HELLO_S;
    return a->pid > 0;
}

bool remote_begin(const hosts *h, const remote_opts *o)
{
    all = h;
    opts = *o;
    if (!opts.travels)
        opts.travels = travels_always;
    for (int k = 0; k < all->n; k++)
        if (!all->list[k].here && !connect_to(&agents[k])) {
            fprintf(stderr, "trek-run: %s: ssh cannot be run: %s\n", all->list[k].name, strerror(errno));
            return false;
        }
    return true;
}

static bool is_here(const agent *a) { return a->state == SPEAKS && a->machine[0]; }

int remote_count_stopped(void)
{
    int stopped = 0;
    for (int h = 0; all && h < all->n; h++)
        stopped += agents[h].stopped;
    return stopped;
}

bool remote_all_are_here(void)
{
    int k = 0;
    while (all && k < all->n && (all->list[k].here || is_here(&agents[k])))
        k++;
    return !all || k == all->n;
}

/* --- where the job meets ------------------------------------------------------------------------- */

/* Finds word `which` of "client port server port", if other machines can use that address. */
static bool address_of(const agent *a, int which, char address[256])
{
    char words[4][100];
    if (sscanf(a->connection, "%99s %99s %99s %99s", words[0], words[1], words[2], words[3]) != 4)
        return false;
    const char *word = words[which];
    bool own = strncmp(word, "127.", 4) == 0 || strcmp(word, "::1") == 0 || strchr(word, '%');
    if (!own)
        snprintf(address, 256, "%s", word);
    return !own;
}

/* Returns whether all run on one machine and in one network of it. */
static bool is_one_machine(void)
{
    char own[300];
    start_machine(own, sizeof own);
    const char *first = all->list[0].here ? own : agents[0].machine;
    for (int k = 1; k < all->n; k++)
        if (strcmp(first, all->list[k].here ? own : agents[k].machine) != 0)
            return false;
    return true;
}

bool remote_find_address(char address[256], char port[16])
{
    bool here = all->list[0].here;
    if (port[0] == '\0' && !here)
        snprintf(port, 16, "%s", agents[0].port);
    if (port[0] == '\0' && !start_find_port(port)) {
        fprintf(stderr, "trek-run: no port is free: %s\n", strerror(errno));
        return false;
    }
    if (address[0])
        return true;
    if (is_one_machine()) {
        snprintf(address, 256, "127.0.0.1");
        return true;
    }
    if (address_of(&agents[here ? 1 : 0], here ? 0 : 2, address))
        return true;
    if (here)
        gethostname(address, 255);
    else
        snprintf(address, 256, "%s", host_address(&all->list[0]));
    if (!here && agents[0].connection[0] == '\0')
        return true;
    if (here && address[0] && agents[1].connection[0] == '\0')
        return true;
    fprintf(stderr, "trek-run: the other machines cannot reach %s at the address that ssh has taken: --address names another\n",
            all->list[0].name);
    return false;
}

/* --- the job ---------------------------------------------------------------------------------------- */

void remote_set_job(const job *j) { asked = j; }

/* Returns whether a variable is passed on: those that the caller has named are, and TREK_ variables except those of
 * which each process gets its own value. */
static bool travels(const char *variable)
{
    static const char *const own[] = { "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "ADDRESS", "PORT", "TOKEN", "JOIN",
                                       "LAUNCHER_FD", "RUN_SSH" };
    size_t length = strcspn(variable, "=");
    bool passes = strncmp(variable, "TREK_", 5) == 0;
    for (size_t k = 0; k < sizeof own / sizeof *own; k++)
        passes = passes && !(strlen(own[k]) == length - 5 && strncmp(own[k], variable + 5, length - 5) == 0);
    for (char *const *name = opts.travels; *name; name++)
        passes = passes || (strlen(*name) == length && strncmp(*name, variable, length) == 0);
    return passes;
}

static void send_job(agent *a)
{
    wire_texts t = { 0 };
    wire_texts_add(&t, 'f', opts.folder);
    wire_texts_number(&t, 'n', asked->processes);
    wire_texts_number(&t, 'j', asked->joins);
    wire_texts_number(&t, 'l', host_at(a)->processes);
    wire_texts_number(&t, 'c', asked->cores);
    wire_texts_add(&t, 'h', asked->address);
    wire_texts_add(&t, 'p', asked->port);
    wire_texts_add(&t, 't', asked->token);
    for (char **variable = environ; *variable; variable++)
        if (travels(*variable))
            wire_texts_add(&t, 'e', *variable);
    for (char **argument = asked->program; *argument; argument++)
        wire_texts_add(&t, 'a', *argument);
    if (!t.failed)
        wire_send(&a->wire, WIRE_JOB, 0, t.data, t.used);
    a->knows_job = !t.failed;
    free(t.data);
}

static void ask_for(int rank)
{
    agent *a = agent_of(rank);
    if (!a->knows_job)
        send_job(a);
    if (rank == 0)
        input.sent = 0;
    wire_send_numbers(&a->wire, WIRE_START, rank, rank - host_at(a)->first, ranks[rank].generation);
    if (rank == 0 && input.ended)
        wire_send(&a->wire, WIRE_INPUT, 0, NULL, 0);
}

void remote_start(int rank, int generation)
{
    agent *a = agent_of(rank);
    ranks[rank].runs = true;
    ranks[rank].generation = generation;
    if (a->state == LOST) {
        a->state = WAITS;
        a->until = now() + (a->tries++ ? AGAIN_S : 1);
    } else if (a->state == SPEAKS) {
        ask_for(rank);
    }
}

/* --- what agents say ----------------------------------------------------------------------------------- */

static bool has_ranks(const agent *a)
{
    const host *h = host_at(a);
    int r = h->first;
    while (r < h->first + h->processes && !ranks[r].runs)
        r++;
    return r < h->first + h->processes;
}

/* `how` is what is known of their ends. */
static void drop_ranks(agent *a, const char *how)
{
    const host *h = host_at(a);
    bool lost[MOST];
    for (int r = h->first; r < h->first + h->processes; r++) { /* one that ends may be restarted at once */
        lost[r] = ranks[r].runs;
        ranks[r].runs = false;
    }
    for (int r = h->first; r < h->first + h->processes; r++)
        if (lost[r])
            opts.ended(r, SIGKILL, how);
}

/* Handles the end of ssh. */
static void lose(agent *a, int status)
{
    const host *h = host_at(a);
    bool hello = a->state == SPEAKS, needed = !quits || has_ranks(a), first = !a->before;
    char how[80];
    if (WIFSIGNALED(status))
        snprintf(how, sizeof how, "was ended by signal %d", WTERMSIG(status));
    else
        snprintf(how, sizeof how, "ended with status %d", WEXITSTATUS(status));
    output_read(a->errors);
    output_end(a->errors);
    wire_end(&a->wire);
    a->pid = 0;
    a->state = LOST;
    a->stopped = 0;
    a->machine[0] = '\0';
    if (needed && hello)
        fprintf(stderr, "trek-run: %s: the connection has ended (ssh %s)\n", h->name, how);
    else if (needed && WIFEXITED(status) && WEXITSTATUS(status) == NOT_FOUND)
        fprintf(stderr, "trek-run: %s: '%s' cannot be run there (ssh %s): --remote-trek-run names another\n", h->name,
                opts.trek_run,
                how);
    else if (needed)
        fprintf(stderr, "trek-run: %s: cannot connect (ssh %s)\n", h->name, how);
    drop_ranks(a, hello ? "was lost with its machine" : NOT_AGAIN);
    if (needed && first)
        opts.refused();
}

static void take_machine(agent *a, const frame *f)
{
    for (const char *t = NULL; (t = wire_texts_next(f, t));) {
        if (*t == 'm')
            snprintf(a->machine, sizeof a->machine, "%s", t + 1);
        else if (*t == 's')
            snprintf(a->connection, sizeof a->connection, "%s", t + 1);
        else if (*t == 'p')
            snprintf(a->port, sizeof a->port, "%s", t + 1);
    }
    const host *h = host_at(a);
    for (int r = h->first; r < h->first + h->processes; r++)
        if (a->before && ranks[r].runs)
            ask_for(r);
    a->before = true;
    a->tries = 0;
}

/* Returns the words of another machine, cleaned so that they cannot control this terminal. */
enum { WORDS = 2048 };
static const char *words_of(const frame *f, char words[WORDS])
{
    trek_plain_text(words, WORDS, f->data, f->bytes);
    return words;
}

static void take(agent *a, const frame *f)
{
    char words[WORDS];
    if (f->rank < 0 || f->rank >= MOST || agent_of(f->rank) != a)
        a = f->type == WIRE_MACHINE || f->type == WIRE_REFUSED || f->type == WIRE_STOPPED ? a : NULL; /* of no rank */
    if (!a)
        return;
    switch (f->type) {
    case WIRE_MACHINE:
        take_machine(a, f);
        break;
    case WIRE_OUTPUT:
        if (f->bytes > 0 && (ranks[f->rank].generation & 63) == (unsigned char)f->data[0] >> 1)
            opts.wrote(f->rank, ranks[f->rank].generation, f->data[0] & 1, f->data + 1, f->bytes - 1);
        break;
    case WIRE_END:
        if (ranks[f->rank].runs) {
            ranks[f->rank].runs = false;
            opts.ended(f->rank, (int)wire_number(f, 0), NULL);
        }
        break;
    case WIRE_FAILED:
        opts.failed(f->rank, (int)wire_number(f, 0));
        break;
    case WIRE_REFUSED:
        fprintf(stderr, "trek-run: %s: %s\n", host_at(a)->name, words_of(f, words));
        opts.refused();
        break;
    case WIRE_TAKEN:
        input.sent -= wire_number(f, 0);
        break;
    case WIRE_STOPPED:
        a->stopped = (int)wire_number(f, 0);
        break;
    default:
        break;
    }
}

/* Passes on what a shell prints before the agent begins. */
static void take_hello(agent *a)
{
    frame f;
    char words[WORDS];
    size_t length = strlen(WIRE_HELLO);
    while (a->state == CONNECTS && wire_line(&a->wire, &f)) {
        if (f.bytes < length || memcmp(f.data, WIRE_HELLO, length) != 0) {
            if (f.bytes > 0)
                fprintf(stderr, "trek-run: %s: %s\n", host_at(a)->name, words_of(&f, words));
            continue;
        }
        if (f.bytes - length == strlen(WIRE_VERSION) && memcmp(f.data + length, WIRE_VERSION, f.bytes - length) == 0) {
            a->state = SPEAKS;
            a->until = 0;
            return;
        }
        fprintf(stderr, "trek-run: %s: its trek-run is of another version (\"%s\", not \"" WIRE_HELLO WIRE_VERSION "\")\n",
                host_at(a)->name, words_of(&f, words));
        kill(a->pid, SIGKILL);
    }
}

/* Returns false if nothing more will come. */
static bool hear(agent *a)
{
    frame f;
    bool bad = false, more = wire_fill(&a->wire);
    a->heard = now();
    if (a->state == CONNECTS)
        take_hello(a);
    while (a->state == SPEAKS && wire_next(&a->wire, &f, &bad))
        take(a, &f);
    return more && !bad;
}

/* ssh should end on its own after its output has ended; its status tells more. */
static void close_wire(agent *a)
{
    if (a->wire.in >= 0)
        close(a->wire.in);
    if (a->wire.out >= 0)
        close(a->wire.out);
    a->wire.in = a->wire.out = -1;
    a->until = now() + CLOSE_S;
}

/* --- while they run ---------------------------------------------------------------------------------------- */

void remote_send(int signal)
{
    for (int k = 0; all && k < all->n; k++)
        if (agents[k].state == SPEAKS)
            wire_send_numbers(&agents[k].wire, WIRE_SIGNAL, 0, signal, 0);
}

void remote_give_up(void)
{
    for (int k = 0; all && k < all->n; k++) {
        agent *a = &agents[k];
        if (a->state == CONNECTS && a->pid > 0)
            kill(a->pid, SIGKILL); /* its end follows */
        if (a->state != WAITS)
            continue;
        a->state = LOST;
        drop_ranks(a, NOT_AGAIN);
    }
}

void remote_note_death(const char *line)
{
    for (int k = 0; all && k < all->n; k++)
        if (agents[k].state == SPEAKS)
            wire_send(&agents[k].wire, WIRE_DEATH, 0, line, strlen(line));
}

void remote_quit(void)
{
    if (quits)
        return;
    quits = true;
    for (int k = 0; all && k < all->n; k++) {
        agent *a = &agents[k];
        if (a->state == SPEAKS) {
            wire_send(&a->wire, WIRE_QUIT, 0, NULL, 0);
            a->until = now() + QUIT_S;
        } else if (a->pid > 0) {
            kill(a->pid, SIGKILL);
        }
    }
}

bool remote_needs(pid_t pid)
{
    for (int k = 0; all && k < all->n; k++)
        if (agents[k].pid == pid)
            return true;
    return false;
}

bool remote_reaped(pid_t pid, int status)
{
    for (int k = 0; all && k < all->n; k++) {
        agent *a = &agents[k];
        if (a->pid != pid)
            continue;
        while (a->wire.in >= 0 && hear(a) && a->wire.got_used > a->wire.got_begin)
            ;
        lose(a, status);
        return true;
    }
    return false;
}

/* Only a process in the foreground can read from a terminal. */
static bool reads_input(void)
{
    if (!all || all->list[0].here || agents[0].state != SPEAKS || !ranks[0].runs || input.ended || input.sent >= INPUT_WINDOW)
        return false;
    pid_t foreground = tcgetpgrp(STDIN_FILENO);
    return foreground < 0 || foreground == getpgrp();
}

static void read_input(void)
{
    char bytes[16384];
    ssize_t got = read(STDIN_FILENO, bytes, sizeof bytes);
    if (got < 0 && (errno == EINTR || errno == EAGAIN))
        return;
    input.ended = got <= 0;
    input.sent += got > 0 ? got : 0;
    wire_send(&agents[0].wire, WIRE_INPUT, 0, bytes, got > 0 ? (size_t)got : 0);
}

nfds_t remote_poll(struct pollfd *watched)
{
    nfds_t n = 0;
    watched[n++] = (struct pollfd){ .fd = reads_input() ? STDIN_FILENO : -1, .events = POLLIN };
    for (int k = 0; all && k < all->n; k++) {
        agent *a = &agents[k];
        if (a->pid == 0)
            continue;
        if (a->wire.in >= 0)
            watched[n++] = (struct pollfd){ .fd = a->wire.in, .events = POLLIN };
        if (a->wire.out >= 0 && wire_queued(&a->wire) > 0)
            watched[n++] = (struct pollfd){ .fd = a->wire.out, .events = POLLOUT };
        if (a->errors->fd >= 0)
            watched[n++] = (struct pollfd){ .fd = a->errors->fd, .events = POLLIN };
    }
    return n;
}

/* `awake` says that this process was not stopped, or otherwise kept from running, for long. */
static void look_at_clock(agent *a, bool awake)
{
    double time = now();
    if (!awake)
        a->heard = time;
    if (a->state == WAITS && time >= a->until && !connect_to(a)) {
        a->state = LOST;
        drop_ranks(a, NOT_AGAIN);
    }
    if (a->pid == 0)
        return;
    if (a->state == SPEAKS && a->until == 0 && time - a->heard > SILENCE_S) {
        fprintf(stderr, "trek-run: %s has said nothing for %d s\n", host_at(a)->name, SILENCE_S);
        a->until = time;
    } else if (a->state == CONNECTS && time >= a->until) {
        fprintf(stderr, "trek-run: %s has not answered for %d s\n", host_at(a)->name, HELLO_S);
    }
    if (a->until > 0 && time >= a->until)
        kill(a->pid, SIGKILL);
}

void remote_serve(void)
{
    static double last;
    struct pollfd in = { .fd = STDIN_FILENO, .events = POLLIN };
    bool awake = now() - last < SILENCE_S / 3;
    last = now();
    if (reads_input() && poll(&in, 1, 0) == 1)
        read_input();
    for (int k = 0; all && k < all->n; k++) {
        agent *a = &agents[k];
        struct pollfd wired = { .fd = a->pid > 0 ? a->wire.in : -1, .events = POLLIN };
        if (a->pid > 0) {
            output_read(a->errors);
            wire_flush(&a->wire);
        }
        if (poll(&wired, 1, 0) == 1 && !hear(a))
            close_wire(a);
        look_at_clock(a, awake);
    }
}
