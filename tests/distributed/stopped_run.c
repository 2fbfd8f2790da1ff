/* SPDX-License-Identifier: Apache-2.0 */
#include "data/loader_position.h"
#include "graph/amp.h"
#include "graph/settings.h"
#include "nn/module_tree.h"
#include "optim/optimizer_state.h"
#include "optim/scaler.h"
#include "tests/distributed/stopped_run.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "autograd/ops.h"
#include "distributed/comm/comm.h"
#include "graph/flow.h"
#include "nn/layers.h"
#include "nn/lora.h"
#include "nn/parametrize.h"
#include "nn/state.h"
#include "tests/support/noted.h"
#include "tests/support/refused.h"
#include "tests/support/labelled.h"
#include "tests/support/support.h"
#include "tests/support/tamed.h"

char folder[256];
int prefetch;

const char *path_of(const char *name)
{
    static char path[2][512];
    static int turn;
    turn ^= 1;
    snprintf(path[turn], sizeof path[turn], "%s/%s", folder, name);
    return path[turn];
}

/* --- a run ----------------------------------------------------------------------------------------------- */

trek_graph *build(trek_device device, void *arg)
{
    const run_opts *o = arg;
    trek_linear_opts up = { .in = IN, .out = HIDDEN, .dtype = o->dtype, .device = device };
    trek_linear_opts down = { .in = HIDDEN, .out = CLASSES, .dtype = o->dtype, .device = device };
    trek_batch_norm_opts norm = { .features = HIDDEN, .dtype = o->dtype, .device = device };
    trek_module *modules[5] = { trek_nn_linear_with(&up), o->norm ? trek_nn_sync_batch_norm_with(&norm) : trek_nn_identity(),
                                trek_nn_gelu(),
                                trek_nn_dropout(0.3), trek_nn_linear_with(&down) };
    if (o->made) {
        trek_weight_norm(modules[0], NULL, 0);
        trek_spectral_norm(modules[4], NULL, NULL);
        trek_lora(modules[4], &(trek_lora_opts){ .r = 2, .lora_dropout = 0.2 });
    }
    return trek_flow_build(trek_flow_from(trek_nn_sequential(modules, 5)));
}

static trek_optimizer_spec optimizer_of(const run_opts *o)
{
    return o->optimizer == SGD     ? trek_sgd(&(trek_sgd_opts){ .lr = 0.05, .momentum = 0.9 })
           : o->optimizer == LAMB      ? trek_lamb(&(trek_lamb_opts){ .lr = 0.02, .weight_decay = 0.01 })
           : o->optimizer == ADAFACTOR ? trek_adafactor(&(trek_adafactor_opts){ .lr = 0.02 })
           : o->optimizer == TAMED ? tamed(0.02, 0.9)
           : o->optimizer == RMSPROP
               ? trek_rmsprop(&(trek_rmsprop_opts){ .lr = 0.005, .momentum = 0.9, .centered = true })
                                   : trek_adamw(&(trek_adam_opts){ .lr = 0.02 });
}

trek_graph *begin(const run_opts *o)
{
    run_opts copy = *o;
    trek_device devices[4];
    for (int r = 0; r < o->ranks; r++)
        devices[r] = test_device_of_rank(r);
    trek_graph *graph = build(devices[0], &copy);
    assert_non_null(graph);
    trek_status status = trek_trainer_setup(graph, &(trek_trainer_opts){
        .build_replica = build, .arg = &copy, .devices = devices, .ranks = o->ranks, .max_grad_norm = 0.7,
            .share_params = o->separate ? TREK_OFF : 0, .shard = o->sharded ? TREK_SHARD_STATE : TREK_SHARD_NONE,
        .optimizer = trek_with_state(optimizer_of(o), o->state_dtype),
        .plan = o->plan, .schedule = trek_cosine_lr(0.02, STEPS, 0.001),
        .amp = { .scaling = o->scaled, .scaler = { .growth_interval = 3 } } });
    SUCCEEDS(status);
    return graph;
}

trek_loader *loader_new(uint64_t seed)
{
    return trek_loader_new(labelled_rows(9, SAMPLES, IN, CLASSES),
                           &(trek_loader_opts){ .batch_size = BATCH, .shuffle = true, .seed = seed, .device = test_device(),
                                                .prefetch = prefetch });
}

static void train_batch(trek_graph *graph, const run_opts *o, trek_batch *batch)
{
    trek_var *y = trek_graph_forward(graph, trek_cast(trek_batch_get(batch, "x"), o->dtype));
    if (trek_graph_backward(graph, trek_cross_entropy(y, trek_batch_get(batch, "label"))) != TREK_OK ||
        trek_graph_step(graph) != TREK_OK)
        fail_msg("%s", trek_error());
}

void train(trek_graph *graph, const run_opts *o, trek_loader *loader, int64_t end, bool resumed, bool saves)
{
    int64_t epoch;
    trek_loader_position(loader, &epoch, NULL);
    for (; trek_graph_steps(graph) < end; epoch++, resumed = false) {
        if (!resumed)
            assert_int_equal(trek_loader_start(loader, epoch), TREK_OK);
        for (trek_batch *batch; trek_graph_steps(graph) < end && (batch = trek_loader_next(loader));) {
            train_batch(graph, o, batch);
            char name[32];
            snprintf(name, sizeof name, "step-%d", (int)trek_graph_steps(graph));
            if (saves && trek_checkpoint_save(graph, loader, path_of(name)) != TREK_OK)
                fail_msg("%s", trek_error());
        }
    }
}

void look(trek_graph *graph, const trek_loader *loader, record *to)
{
    memset(to, 0, sizeof *to);
    to->n = note_state(trek_graph_module(graph), to->values, MOST);
    to->lr = trek_graph_lr(graph);
    to->steps = trek_graph_steps(graph);
    to->scale = trek_graph_scaler(graph) ? trek_grad_scaler_value(trek_graph_scaler(graph)) : 0;
    if (loader)
        trek_loader_position(loader, &to->epoch, &to->batch);
}

void expect_close(const record *got, const record *expected, double tolerance, const char *what)
{
    assert_int_equal(got->n, expected->n);
    for (int k = 0; k < got->n; k++)
        if (!(fabs(got->values[k] - expected->values[k]) <= tolerance * (1 + fabs(expected->values[k]))))
            fail_msg("%s: number %d is %.17g instead of %.17g", what, k, got->values[k], expected->values[k]);
    assert_true(fabs(got->lr - expected->lr) <= tolerance && got->scale == expected->scale);
    assert_true(got->steps == expected->steps && got->epoch == expected->epoch && got->batch == expected->batch);
}

trek_graph *begin_elsewhere(const run_opts *o, trek_loader **loader)
{
    trek_seed(4711);
    trek_graph *graph = begin(o);
    *loader = loader_new(3);
    return graph;
}

void end_run(trek_graph **graph, trek_loader **loader)
{
    trek_loader_free(loader);
    trek_graph_free(graph);
}

/* --- what is refused changes nothing --------------------------------------------------------------------- */

void expect_refusal(trek_graph *graph, trek_loader *loader, const char *path, trek_status status, const char *text)
{
    static record before, after;
    look(graph, loader, &before);
    trek_status got = trek_checkpoint_load(graph, loader, path);
    if (got != status || (text && !strstr(trek_error(), text)))
        fail_msg("%s instead of %s: \"%s\"", trek_status_name(got), trek_status_name(status), trek_error());
    trek_error_clear();
    look(graph, loader, &after);
    assert_memory_equal(&before, &after, sizeof before);
}

char *read_file(const char *path, size_t *size)
{
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    char *data = malloc((size_t)info.st_size);
    FILE *file = fopen(path, "rb");
    assert_true(file && data && fread(data, 1, (size_t)info.st_size, file) == (size_t)info.st_size);
    fclose(file);
    *size = (size_t)info.st_size;
    return data;
}

void write_file(const char *path, const char *data, size_t size)
{
    int file = open(path, O_WRONLY | O_CREAT, 0666); /* a file cut to nothing first is synced by some file systems */
    assert_true(file >= 0 && write(file, data, size) == (ssize_t)size && ftruncate(file, (off_t)size) == 0);
    assert_int_equal(close(file), 0);
}

/* --- the program ----------------------------------------------------------------------------------------- */

int make_folder(void **state)
{
    snprintf(folder, sizeof folder, "%s/trek-checkpoint-XXXXXX", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    return mkdtemp(folder) ? 0 : -1;
}

int remove_folder(void **state)
{
    DIR *list = opendir(folder);
    for (struct dirent *entry; list && (entry = readdir(list));) {
        char path[1024];
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        if (entry->d_name[0] != '.')
            unlink(path);
    }
    if (list)
        closedir(list);
    return rmdir(folder);
}

int begin_test(void **state)
{
    trek_error_clear();
    alarm(120);
    return 0;
}
