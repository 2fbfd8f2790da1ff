/* SPDX-License-Identifier: Apache-2.0 */
/* Processes that kill themselves. */
#include "tests/distributed/grains/dying.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tensor/trace.h"
#include "tests/support/support.h"
#include "tests/support/unit.h"

static const part *mine;

int dying_number(const char *text, const char *name, int unset)
{
    const char *at = strstr(text, name);
    return at ? atoi(at + strlen(name)) : unset;
}

static const char *name_sign(char *path, size_t size, const char *what, int number)
{
    const char *folder = strstr(mine->detail, "in=");
    if (!folder)
        return NULL;
    snprintf(path, size, "%.*s/%s.%d", (int)strcspn(folder + 3, ","), folder + 3, what, number);
    return path;
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
    for (double since = 0; !dying_has_sign(what, number) && test_wait(&since);)
        continue;
}

static void die(void)
{
    dying_give_sign("dead", mine->process);
    if (strstr(mine->detail, "as=")) /* nobody need wait for it */
        dying_give_sign("come", dying_number(mine->detail, "turn=", 0));
    kill(getpid(), SIGKILL);
}

static void enter(const char *name)
{
    static atomic_int times;
    char word[64];
    snprintf(word, sizeof word, "at=%s:", name);
    for (char *c = word; *c; c++)
        *c = *c == ' ' ? '_' : *c;
    const char *at = strstr(mine->detail, word);
    if (at && atomic_fetch_add(&times, 1) == atoi(at + strlen(word)))
        die();
}

static void span(const char *name, int rank, int64_t start, int64_t end, int64_t detail, void *arg)
{
    (void)name, (void)rank, (void)start, (void)end, (void)detail, (void)arg;
}

static void event(const char *name, int rank, int64_t at, double value, void *arg)
{
    (void)name, (void)rank, (void)at, (void)value, (void)arg;
}

/* The first group's engine, whose calls are counted from the first one that comes in training. */
static trek_comm_engine counted;
static trek_status (*run_really)(trek_comm *comm, const trek_comm_call *call);
static atomic_bool trains;
static int calls;

static trek_status run_counted(trek_comm *comm, const trek_comm_call *call)
{
    int number = atomic_load(&trains) ? calls++ : -1;
    if (number >= 0 && number == dying_number(mine->detail, "before=", -1))
        die();
    trek_status status = run_really(comm, call);
    if (number >= 0 && number == dying_number(mine->detail, "after=", -1))
        die();
    return status;
}

static void on_grain(const char *name)
{
    if (strcmp(name, "grain") == 0)
        atomic_store(&trains, true);
    enter(name);
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

void dying_end(void) { atomic_store(&trek_trace_now, NULL); }
int dying_calls(void) { return calls; }

void dying_leave_too_few(world *w)
{
    processes_init(w, 3);
    for (int p = 0; p < 3; p++)
        processes_start(w, p, "train", p == 1 ? "model=0,least=3,at=grain:4" : "model=0,least=3");
    processes_finish(w, -1);
    for (int p = 0; p < 3; p += 2) {
        bool told = w->code[p] == 1 && strstr(w->text[p], "TREK_ERR_PEER: ") && strstr(w->text[p], "process 1") &&
                    strstr(w->text[p], ".min_processes is 3");
        if (!told)
            processes_print(w);
        assert_true(told);
    }
}
