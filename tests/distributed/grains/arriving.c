/* SPDX-License-Identifier: Apache-2.0 */
/* Processes that come to a job. */
#include "tests/distributed/grains/arriving.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include "data/loader_position.h"
#include "distributed/comm/regroup.h"
#include "distributed/job/survival.h"
#include "distributed/stepper_internal.h"
#include "graph/graph_loader_internal.h"
#include "graph/passes.h"
#include "graph/settings.h"
#include "tests/support/support.h"
#include "tests/support/unit.h"

static const part *mine;

/* Returns how many processes have come, or wait to be let in, which the one sees that listens at the job's address. */
static int arrived(const trek_survival *survival, const trek_comm *comm)
{
    return dying_has_sign("come", 0) + dying_has_sign("come", 1) + trek_regroup_joiners(survival->regroup, comm);
}

/* Returns whether process k that comes is waited for before this step: that step is named, or it has not come, although it was
 * waited for, and processes have died meanwhile. The one at which it waited to be let in may be among them. */
static bool is_due(const trek_survival *survival, int k, int64_t step)
{
    static const char *const words[] = { "waits=", "again=" };
    static int64_t groups[2];
    int64_t first = dying_number(mine->detail, words[k], -1);
    bool due = survival && (step == first || (first > 0 && step > first && survival->groups != groups[k] &&
                                              !dying_has_sign("come", k)));
    if (due)
        groups[k] = survival->groups;
    return due;
}

void arriving_wait(trek_graph *graph)
{
    const int64_t step = trek_graph_steps(graph);
    const trek_survival *survival = trek_graph_ranks(graph)->job.survival;
    const trek_comm *comm = trek_graph_ranks(graph)->job.comm;
    if (dying_word(mine->detail, "as="))
        dying_give_sign("come", dying_number(mine->detail, "turn=", 0));
    for (int k = 0; k < 2; k++) {
        if (!is_due(survival, k, step))
            continue;
        int go = (int)(2 * step) + k;
        for (double since = 0; !dying_has_sign("go", go) && arrived(survival, comm) <= k && test_wait(&since);)
            continue;
        if (arrived(survival, comm) > k)
            dying_give_sign("go", go);
        dying_await_sign("go", go);
    }
}

/* What a process does that does not follow the others. */
static void go_astray(trek_graph *graph)
{
    trek_loader *loader = graph->graph_loader->loader;
    if (strstr(mine->detail, "from-the-start"))
        trek_loader_seek(loader, 0, 0);
    if (strstr(mine->detail, "other-clip"))
        trek_graph_set_clip(graph, 0.5, 0);
    if (strstr(mine->detail, "other-seed"))
        trek_seed(99);
    if (strstr(mine->detail, "frozen"))
        trek_graph_freeze(graph, "0.a");
}

/* What tells machines apart is the file system in which memory is shared. */
static bool go_to_another_machine(void)
{
    if (unshare(CLONE_NEWNS) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0)
        return false;
    return mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 && mount("none", "/dev/shm", "tmpfs", 0, NULL) == 0;
}

bool arriving_machines(void)
{
    pid_t child = fork();
    int status = 1;
    if (child == 0)
        _exit(!go_to_another_machine());
    return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}

static bool is_new(const part *me) { return dying_word(me->detail, "as=new") != NULL; }

/* As a launcher says it. */
static void set_environment(const part *me)
{
    char number[3][16];
    unsetenv("TREK_RANK");
    unsetenv("TREK_WORLD_SIZE");
    snprintf(number[0], sizeof number[0], "%d", dying_number(me->detail, "as=", 0));
    snprintf(number[1], sizeof number[1], "%d", dying_number(me->detail, "of=", 3));
    snprintf(number[2], sizeof number[2], "%d", me->port);
    if (!is_new(me)) {
        setenv("TREK_RANK", number[0], 1);
        setenv("TREK_WORLD_SIZE", number[1], 1);
    }
    setenv("TREK_ADDRESS", me->address, 1);
    setenv("TREK_PORT", strstr(me->detail, "elsewhere") ? "1" : number[2], 1);
    setenv("TREK_TOKEN", strstr(me->detail, "wrong-token") ? "open" : "sesame", 1);
    setenv("TREK_JOIN", is_new(me) ? "new" : "1", 1);
    if (strstr(me->detail, "elsewhere") || strstr(me->detail, "after-the-end"))
        setenv("TREK_JOIN_SECONDS", "1", 1);
}

bool arriving_begin(const part *me, trek_comm **comm)
{
    bool joins = dying_word(me->detail, "as=") != NULL, hides = strstr(me->detail, "no-engine") != NULL;
    const char *plugins = getenv("TREK_PLUGIN_PATH");
    mine = me;
    *comm = NULL;
    dying_set_threads(me);
    if (strstr(me->detail, "apart") && !(go_to_another_machine() && (!hides || mount("none", plugins, "tmpfs", 0, NULL) == 0)))
        return printf("no other machine can be made\n"), false;
    if (joins)
        set_environment(me);
    else if (!(*comm = dying_join(me, dying_number(me->detail, "of=", 3))))
        return false;
    dying_begin(me, *comm);
    if (joins && (!is_new(me) || dying_word(me->detail, "after="))) /* in the place of a process that has died */
        dying_await_sign("dead", dying_number(me->detail, "after=", dying_number(me->detail, "as=", 0)));
    if (strstr(me->detail, "after-the-end"))
        dying_await_sign("over", 0);
    return true;
}

void arriving_end(void)
{
    dying_end();
    dying_give_sign("over", 0);
    if (dying_word(mine->detail, "as=")) /* even if it was not let in */
        dying_give_sign("come", dying_number(mine->detail, "turn=", 0));
}

/* With "awaits=P" a process goes on when process P, which dies here, is dead. */
static void await_death(trek_graph *graph)
{
    int other = dying_number(mine->detail, "awaits=", -1);
    dying_enter("epoch");
    if (other >= 0)
        dying_await_sign("dead", other);
}

int arriving_play(const part *me)
{
    static grain_result result;
    grain_run run = dying_run(me->detail);
    run.last_only = true;
    run.after_step = arriving_wait;
    run.on_joined = go_astray;
    run.on_epoch = await_death;
    if (!arriving_begin(me, &run.comm))
        return 1;
    bool good = grain_train(&run, &result);
    arriving_end();
    return dying_report(good ? &result : NULL, run.comm);
}

void arriving_expect(const char *detail, const role *roles, int left)
{
    dying_expect(detail, roles, dying_digest(detail, true), left);
}
