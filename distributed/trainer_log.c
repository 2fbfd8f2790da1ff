/* SPDX-License-Identifier: Apache-2.0 */
/* The line in the log that says what a trainer has set up. */
#include "distributed/trainer_setup.h"

#include "distributed/job/rank_devices.h"
#include "distributed/stepper.h"
#include "distributed/team/step.h"
#include "distributed/trainer_ranks.h"
#include "nn/module_tree.h"
#include "nn/text.h"
#include "tensor/cores.h"

typedef struct inexact {
    trek_text text;
    bool windows;            /* ranks run their own batches, so that layers cannot meet */
} inexact;

static trek_status note_inexact(const char *name, trek_module *module, void *arg)
{
    inexact *i = arg;
    if (module->own->klass->couples_samples || (i->windows && module->own->klass->meets_ranks))
        trek_text_format(&i->text, "%s%s \"%s\"", i->text.length ? ", " : "", trek_module_name(module), name);
    return TREK_OK;
}

/* Writes e.g. "2 CPU ranks with 1 thread each, one copy of the parameters", "3 GPU ranks on cuda:0, cuda:1, cuda:2",
 * or "1 CPU rank with 2 threads and 1 GPU rank on cuda:0, rank 0's parameters after each step". */
static void describe_ranks(const trainer_setup *s, trek_text *text)
{
    char device[16];
    int on_cpu = trek_trainer_count_cpus(s), on_gpu = s->local_ranks - on_cpu, seen = 0;
    if (on_cpu > 0) {
        int threads = trek_threads_wanted() / s->local_ranks > 1 ? trek_threads_wanted() / s->local_ranks : 1;
        trek_text_format(text, "%d CPU rank%s with %d thread%s%s", on_cpu, on_cpu > 1 ? "s" : "", threads, threads > 1 ? "s" : "",
                         on_cpu > 1 ? " each" : "");
        if (on_gpu == 0)
            trek_text_format(text, ", %s", s->opts.share_params == TREK_OFF ? "parameters of their own"
                             : "one copy of the parameters");
    }
    if (on_gpu > 0)
        trek_text_format(text, "%s%d GPU rank%s on ", on_cpu > 0 ? " and " : "", on_gpu, on_gpu > 1 ? "s" : "");
    for (int r = 0; r < s->local_ranks; r++)
        if (s->devices[r].type != TREK_CPU)
            trek_text_format(text, "%s%s", seen++ ? ", " : "", trek_device_name(s->devices[r], device, sizeof device));
    if (on_cpu > 0 && on_gpu > 0)
        trek_text_format(text, ", rank 0's parameters after each step");
}

/* Writes e.g. "; 3 ranks in 2 processes" or "; windows of 20 batches". */
static void describe_job(const trainer_setup *s, trek_text *text)
{
    trek_trainer_workload workload;
    if (trek_trainer_describe(s->graph, &workload) != TREK_OK)
        return;
    if (s->comm)
        trek_text_format(text, "; %d ranks in %d processes", workload.ranks, trek_comm_world_size(s->comm));
    const trek_step *stepper = trek_graph_ranks(s->graph);
    if (stepper && stepper->grain > 0)
        trek_text_format(text, "; grains of %lld samples", (long long)stepper->grain);
    if (stepper && stepper->team->sharers > 1)
        trek_text_format(text, "; the optimizer's state in %d parts%s", stepper->team->sharers,
                         stepper->team->twice ? ", each of them kept twice" : "");
    if (workload.windows)
        trek_text_format(text, "; windows of %lld batches at first, where the loop allows them", (long long)workload.window);
}

/* Explains in the log that ranks on unequal devices get unequal work, unless the program has set their work. */
static void log_unequal(const trainer_setup *s)
{
    const trek_trainer_opts *o = &s->opts;
    const trek_step *stepper = trek_graph_ranks(s->graph);
    if (!stepper || !trek_ranks_devices_differ(&stepper->job, 0, stepper->job.world_size))
        return;
    trek_trainer_workload workload = { 0 };
    trek_trainer_describe(s->graph, &workload);
    bool moves = !o->shares && !o->plan && (workload.windows || o->balance != TREK_OFF);
    trek_text text = { 0 };
    trek_ranks_describe_devices(&stepper->job, &text);
    trek_log_message(moves ? TREK_LOG_LEVEL_WARNING : TREK_LOG_LEVEL_INFO, "trainer: devices differ: %s; %s",
                     text.length ? text.data : "",
                     !moves ? "shares are as the program says" : workload.windows ? "windows of batches follow their speeds"
                     : "shares of each batch follow their speeds");
    trek_text_clear(&text);
}

void trek_trainer_log_setup(const trainer_setup *s)
{
    char device[16];
    if (s->local_ranks == 1 && !s->comm && s->opts.grain == 0) {
        trek_log_message(TREK_LOG_LEVEL_INFO, "trainer: one rank on %s",
                         trek_device_name(trek_trainer_device_of(s->graph, s->devices[0]), device, sizeof device));
        return;
    }
    if (s->joins) {
        const trek_job *job = &trek_graph_ranks(s->graph)->job;
        trek_log_message(TREK_LOG_LEVEL_INFO, "trainer: this process has joined the job, as process %d of %d, after step %lld",
                         job->process, job->processes, (long long)trek_graph_steps(s->graph));
    }
    if (s->joins || (s->comm && trek_comm_rank(s->comm) > 0))
        return;
    log_unequal(s);
    trek_trainer_workload workload = { 0 };
    trek_trainer_describe(s->graph, &workload);
    inexact found = { .windows = workload.windows };
    trek_text kind = { 0 }, job = { 0 };
    trek_module_each(trek_graph_module(s->graph), note_inexact, &found);
    describe_ranks(s, &kind);
    describe_job(s, &job);
    trek_log_message(TREK_LOG_LEVEL_INFO, "trainer: %s%s; %s%s%s", kind.length ? kind.data : "ranks", job.length ? job.data : "",
                     found.text.length ? "exact but for the statistics of each rank's own part in " : "exact",
                     found.text.length ? found.text.data : "", found.text.length ? " (in training)" : "");
    trek_text_clear(&found.text);
    trek_text_clear(&kind);
    trek_text_clear(&job);
}
