/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/distributed/grains/running.h"

#include <fnmatch.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "autograd/ops.h"
#include "data/dataset.h"
#include "distributed/run.h"
#include "graph/passes.h"
#include "graph/settings.h"
#include "nn/module_tree.h"
#include "nn/safetensors.h"
#include "nn/state_modules.h"
#include "nn/state_tensors.h"
#include "optim/optimizers.h"
#include "optim/schedule.h"
#include "tensor/dtypes.h"
#include "tensor/layout.h"
#include "tests/support/support.h"
#include "tests/support/unit.h"

static outcome now;
static int model;
static const part *mine;     /* NULL: one process runs alone */
static trek_graph *first;    /* rank 0's */

/* --- a run --------------------------------------------------------------------------------------------------- */

static trek_graph *build(trek_device device, void *arg)
{
    now.builds++;
    return grain_build(device, arg);
}

static trek_var *loss_of(trek_graph *graph, trek_var *output, const trek_batch *batch, void *arg)
{
    return trek_cross_entropy(output, trek_batch_get(batch, "label"));
}

static trek_var *loss_of_training(trek_graph *graph, trek_var *output, const trek_batch *batch, void *arg)
{
    if (mine)
        arriving_wait(first);
    return loss_of(graph, output, batch, arg);
}

static trek_var *loss_of_evaluation(trek_graph *graph, trek_var *output, const trek_batch *batch, void *arg)
{
    dying_enter("evaluation");
    return loss_of(graph, output, batch, arg);
}

static trek_status on_epoch(trek_graph *graph, int64_t epoch, void *arg)
{
    now.begun++;
    first = graph;
    if (mine)
        arriving_wait(graph); /* one that has come says so, and may get no grain of its first step */
    if (mine && strstr(mine->detail, "frozen"))
        trek_graph_freeze(graph, "0.a");
    return mine && strstr(mine->detail, "epoch-fails") ? TREK_ERR_CALLBACK : TREK_OK;
}

static void take_state(const trek_state *state)
{
    now.digest = UINT64_C(0xcbf29ce484222325);
    for (int k = 0; k < trek_state_count(state); k++) {
        trek_tensor *tensor = trek_state_tensor(state, k);
        const unsigned char *bytes = trek_tensor_data(tensor);
        for (size_t i = 0; i < (size_t)trek_tensor_numel(tensor) * trek_dtype_size(trek_tensor_dtype(tensor)); i++)
            now.digest = (now.digest ^ bytes[i]) * UINT64_C(0x100000001b3);
    }
}

static trek_run_opts opts_of(const char *text, trek_comm *comm, trek_dataset *dataset)
{
    static trek_device devices[GRAIN_RANKS];
    bool scaled = strstr(text, "scaled") != NULL, schedule = strstr(text, "schedule") != NULL;
    double rate = scaled && !mine ? 0.02 : 0.01;
    int divided = mine ? dying_level(text) : 0;
    trek_run_opts o = { .build_model = build, .train_step = loss_of_training, .arg = &model, .dataset = dataset,
                        .evaluation = dataset, .evaluate = loss_of_evaluation, .input = "x",
                        .optimizer = trek_adamw(&(trek_adam_opts){ .lr = rate }), .batch_size = dying_number(text, "batch=", 20),
                        .shuffle = true, .epochs = RUNNING_EPOCHS, .min_processes = mine ? dying_number(text, "least=", 1) : 0,
                        .seed = strstr(text, "other-seed") ? 7 : 0, .on_epoch = on_epoch, .evaluation_batch = 13,
                        .lr_scale = scaled && mine ? 0.5 : 0,
                        .trainer = { .grain = dying_number(text, "grain=", 3), .comm = comm, .balance = TREK_OFF,
                                     .accumulate = dying_number(text, "accumulate=", 0),
                                     .max_grad_norm = strstr(text, "clipped") ? 0.5 : 0,
                                     .shard = mine && strstr(text, "sharded") ? (trek_shard)(TREK_SHARD_STATE + divided)
                                     : TREK_SHARD_NONE,
                                     .share_params = divided > 0 ? TREK_OFF : 0, .bucket_bytes = divided > 0 ? 2048 : 0,
                                     .ranks = mine ? dying_number(text, "ranks=", 1) : 1 } };
    o.trainer.devices = grain_devices_from(mine ? mine->process * o.trainer.ranks : 0, o.trainer.ranks, devices);
    if (schedule)
        o.schedule = trek_cosine_lr(rate, 6, 0);
    return o;
}

/* Runs as the text says, with others or alone. Returns false with an error. */
static bool train(const char *text, trek_comm *comm)
{
    const char *folder = mine ? dying_word(text, "checkpoints=") : NULL;
    char path[128];
    snprintf(path, sizeof path, "%.*s", folder ? (int)strcspn(folder, ",") : 0, folder ? folder : "");
    now = (outcome){ .loss = NAN };
    model = dying_number(text, "model=", MLP);
    trek_dataset *dataset = grain_dataset();
    trek_run_opts o = opts_of(text, comm, dataset);
    o.checkpoint_folder = folder ? path : NULL;
    o.checkpoint_every_steps = folder ? 2 : 0;
    trek_run *run = trek_trainer_run(&o);
    trek_epoch_metrics m;
    for (; run && trek_run_next(run, &m); now.epochs++) {
        now.loss = m.loss;
        now.evaluation = m.evaluation_loss;
        now.steps = now.epochs ? now.steps : (int)m.steps;
    }
    trek_state *state = run ? trek_run_join(run) : NULL;
    if (state)
        take_state(state);
    bool good = state != NULL;
    trek_state_free(&state);
    trek_dataset_free(&dataset);
    return good;
}

int running_play(const part *me)
{
    trek_comm *comm;
    mine = me;
    if (!arriving_begin(me, &comm))
        return 1;
    bool good = train(me->detail, comm);
    arriving_end();
    if (good)
        printf("digest %016" PRIx64 " builds %d begun %d epochs %d steps %d loss %.17g evaluation %.17g calls %d.\n", now.digest,
               now.builds, now.begun, now.epochs, now.steps, now.loss, now.evaluation, dying_calls());
    else
        printf("%s: %s\n", trek_status_name(trek_error_status()), trek_error());
    trek_error_clear();
    trek_comm_free(&comm);
    return good ? 0 : 1;
}

/* --- what is expected ------------------------------------------------------------------------------------------ */

outcome running_alone(const char *detail)
{
    if (!train(detail, NULL))
        fail_msg("%s: %s", detail, trek_error());
    return now;
}

static bool read_outcome(const char *text, outcome *to)
{
    const char *at = strstr(text, "digest ");
    return at && sscanf(at, "digest %" SCNx64 " builds %d begun %d epochs %d steps %d loss %lf evaluation %lf", &to->digest,
                        &to->builds, &to->begun, &to->epochs, &to->steps, &to->loss, &to->evaluation) == 7;
}

/* Values that a program records are process 0's to add up, and go with it. A process that comes is told of an epoch as a whole.
 */
static bool is_as(const outcome *got, const outcome *expected, bool joins, bool records)
{
    bool losses = !records || (got->loss == expected->loss && fabs(got->evaluation - expected->evaluation) < 1e-6);
    bool epochs = joins ? got->epochs >= 1 && got->epochs <= expected->epochs : got->epochs == expected->epochs;
    return got->digest == expected->digest && epochs && got->steps == expected->steps && losses;
}

static bool ends_well(int code, const char *text, const role *role, const outcome *expected, bool records, outcome *got)
{
    if (role->dies && (code == -SIGKILL || !role->may_live))
        return code == -SIGKILL;
    if (role->fails)
        return code == 1 && fnmatch(role->fails, text, 0) == 0;
    return code == 0 && read_outcome(text, got) && is_as(got, expected, dying_word(role->text, "as=") != NULL, records);
}

int running_expect(const char *detail, const role *roles, const outcome *expected, int *made)
{
    static world w;
    int builds = 0;
    dying_play(&w, detail, roles);
    for (int p = 0; p < w.n; p++) {
        outcome got = { 0 };
        if (!ends_well(w.code[p], w.text[p], &roles[p], expected, !roles[0].dies, &got)) {
            processes_print(&w);
            fail_msg("%s: process %d (%s) ended with %d, not with %s digest %016" PRIx64 " steps %d loss %.17g evaluation %.17g",
                     detail, p, roles[p].text, w.code[p], roles[p].fails ? roles[p].fails : "", expected->digest,
                     expected->steps, expected->loss, expected->evaluation);
        }
        builds = builds ? builds : got.builds;
    }
    const char *calls = strstr(w.text[0], "calls ");
    if (made && calls)
        *made = atoi(calls + 6);
    return builds;
}

void running_expect_checkpoint(const char *folder)
{
    char path[256];
    snprintf(path, sizeof path, "%s/step-%012d.safetensors", folder, 3 * RUNNING_EPOCHS);
    trek_state *file = trek_state_read(path);
    if (!file)
        fail_msg("%s", trek_error());
    trek_state_free(&file);
    assert_int_equal(test_remove(folder), 0);
}
