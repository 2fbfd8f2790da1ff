/* SPDX-License-Identifier: Apache-2.0 */
/* What is expected of a job that has ended. */
#include "distributed/checkpoint.h"
#include "graph/graph.h"
#include "graph/settings.h"
#include "tests/distributed/failures.h"
#include "tests/support/support.h"
#include "tests/support/unit.h"

/* Parameters after each step. Windows follow measured speeds: there it is what one process of this job had. */
static uint64_t *reference_of(const running *r)
{
    const scenario *s = r->of;
    if (s->mode == WINDOWS)
        return r->job->of[s->victim == 0].hashes;
    return s->act == TERM || s->act == TERM_ONE ? long_reference[s->gloo][s->processes]
        : references[s->gloo][s->processes][s->ranks][s->mode];
}

bool look_well(running *r)
{
    uint64_t *reference = reference_of(r);
    bool good = r->code == 0 ? true : say_wrong(r, -1, "the job failed");
    for (int p = 0; p < r->of->processes && good; p++) {
        const record *own_record = &r->job->of[p];
        if (!own_record->ended || own_record->steps != STEPS)
            return say_wrong(r, p, "did not end well");
        for (int k = 0; k <= STEPS; k++) {
            reference[k] = reference[k] ? reference[k] : own_record->hashes[k];
            if (own_record->hashes[k] == 0 || own_record->hashes[k] != reference[k])
                return say_wrong(r, p, "other parameters");
        }
    }
    return good;
}

bool names(const char *text, int process)
{
    char needle[32];
    static const char *const kinds[] = { "process %d", "rank %d", "ranks %d", "processes %d", ", %d", "processes 1, %d" };
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        snprintf(needle, sizeof needle, kinds[k], process); /* NOLINT: a literal of the list */
        const char *at = strstr(text, needle);
        if (at && (at[strlen(needle)] < '0' || at[strlen(needle)] > '9'))
            return true;
    }
    return false;
}

/* The phase that the victim was in, as far as the others had time to hear of it. */
static const char *phase_of(const scenario *s)
{
    if (s->act != KILL && s->act != STOP)
        return s->act == ERROR && (s->place == LOSS || s->place == BACKWARD) ? "it broke in" : "";
    switch ((place)s->place) {
    case FIRST:
    case LOSS:
    case BACKWARD:
        return "backward";
    case SAVE:
        return "\"save\"";
    case EVALUATION:
        return "\"evaluate\"";
    default:
        return "";
    }
}

static bool check_survivor(running *r, int p)
{
    const scenario *s = r->of;
    const record *one = &r->job->of[p];
    if (!one->failed || !one->ended_at)
        return say_wrong(r, p, one->failed ? "did not end by itself" : "did not fail");
    if (one->status == TREK_OK || one->error[0] == '\0')
        return say_wrong(r, p, "no error");
    if (!names(one->error, s->victim))
        return say_wrong(r, p, "does not name the process");
    if (!strstr(one->error, phase_of(s)))
        return say_wrong(r, p, "does not name the phase");
    if (s->place == JOIN || s->place == SETUP || (s->place == EARLY && one->again == -1))
        return true;
    const uint64_t *reference = reference_of(r);
    bool anywhere = s->place == STEP || s->place == IN_SAVE || s->place == EARLY;
    bool partly = s->mode >= PARTS && anywhere; /* what the dead had updated is missing */
    if (partly)
        return one->after && one->again != TREK_OK && one->later != TREK_OK ? true : say_wrong(r, p, "goes on after the end");
    if (one->after == 0 || one->after != one->hashes[one->steps] || one->after != reference[one->steps])
        return say_wrong(r, p, "parameters are not those of the last complete step");
    if (one->again == TREK_OK || one->later == TREK_OK)
        return say_wrong(r, p, "a step after the end was OK");
    return true;
}

/* Every process's last operation is in the output. */
static bool has_table(const running *r)
{
    const char *head = strstr(r->text, " processes has ended: ");
    bool good = head != NULL;
    for (int p = 0; p < r->of->processes && good; p++) {
        char needle[32];
        snprintf(needle, sizeof needle, "  process %d", p);
        good = strstr(head, needle) != NULL;
    }
    return good ? true : say_wrong(r, -1, "no table of the processes' last operations");
}

/* The checkpoint is a whole one, of a step after which there was one (or `steps`). */
static bool check_checkpoint(running *r, int steps)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", r->folder, checkpoint_of(r->of));
    my = (scenario){ .mode = r->of->mode, .victim = -1 };
    trek_graph *graph = build(test_device(), NULL);
    trek_loader *loader = loader_new();
    bool good = set_up(graph, 1, NULL, 0) == TREK_OK && trek_checkpoint_load(graph, loader, path) == TREK_OK;
    if (!good)
        print_error("%s\n", trek_error());
    trek_error_clear();
    int64_t done = good ? trek_graph_steps(graph) : -1;
    uint64_t hash = good ? hash_of(graph) : 0, expected = done >= 0 && done <= LONGEST ? reference_of(r)[done] : 1;
    good = good && (steps ? done == steps : done == 4 || done == 8 || done == 12) && (expected == 0 || hash == expected);
    if (steps && good)
        for (int p = 0; p < r->of->processes; p++)
            good = good && r->job->of[p].hashes[steps] == hash;
    trek_graph_free(&graph);
    trek_loader_free(&loader);
    return good ? true : say_wrong(r, -1, "the checkpoint is not that of a step");
}

bool look_failed(running *r)
{
    const scenario *s = r->of;
    bool good = true;
    for (int p = 0; p < s->processes && good; p++)
        if ((s->place == IN_SAVE || s->place == EARLY) && r->job->of[p].ended &&
            !r->job->of[p].failed) /* it came after the end */
            good = r->job->of[p].steps == STEPS || say_wrong(r, p, "did not fail");
        else if (p != s->victim || s->act == COUNT)
            good = check_survivor(r, p);
    bool killed = r->code == 137, failed = r->code >= FAILED && r->code < FAILED + s->processes;
    /* one that stands still is killed when the others have ended, which the launcher may see much later */
    if (good && !(s->act == KILL ? killed : s->act == STOP ? killed || failed : failed))
        good = say_wrong(r, -1, "trek-run ended with another status");
    /* an exit unloads a GPU's driver under the step, whose own error may reach the others first */
    bool by_error = s->act == ERROR || (s->act == EXIT && !test_on_cpu());
    if (good && s->place != JOIN && s->place != SETUP && s->place != EARLY && !by_error)
        good = has_table(r);
    if (good && (s->place == SAVE || s->place == IN_SAVE))
        good = check_checkpoint(r, 0);
    return good;
}

bool look_died_at_end(running *r)
{
    bool good = r->code == 137 ? true : say_wrong(r, -1, "trek-run ended with another status");
    for (int p = 0; p < r->of->processes && good; p++)
        good = p == r->of->victim || (r->job->of[p].ended && !r->job->of[p].failed) ? true : say_wrong(r, p, "did not end well");
    return good;
}

bool look_stopped(running *r)
{
    int steps = r->job->of[0].steps;
    if (r->code != 0)
        return say_wrong(r, -1, "the job failed");
    for (int p = 0; p < r->of->processes; p++)
        if (!r->job->of[p].ended || r->job->of[p].steps != steps)
            return say_wrong(r, p, "stopped at another step");
    if (steps < 1 || steps >= LONGEST)
        return say_wrong(r, 0, "was not asked to stop in the middle");
    for (int k = 0; k <= steps; k++) {
        uint64_t *expected = &reference_of(r)[k];
        *expected = *expected ? *expected : r->job->of[0].hashes[k];
        if (*expected != r->job->of[0].hashes[k])
            return say_wrong(r, 0, "other parameters");
    }
    return check_checkpoint(r, steps);
}
