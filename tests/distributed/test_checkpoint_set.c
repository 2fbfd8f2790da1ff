/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints of which every process writes a part: what one job writes, any other job reads, on other numbers of processes and
 * ranks, with the optimizer's state, gradients and parameters divided or not, evenly or by budgets; and what they save again has
 * the same bits. A save that fails leaves the one before, and no files. */
#include <dirent.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "autograd/ops.h"
#include "distributed/checkpoint.h"
#include "distributed/checkpoint_set.h"
#include "distributed/comm/comm.h"
#include "distributed/trainer.h"
#include "graph/flow.h"
#include "graph/settings.h"
#include "nn/layers.h"
#include "nn/norms.h"
#include "nn/state_internal.h"
#include "nn/state_modules.h"
#include "optim/optimizer_state.h"
#include "optim/optimizers.h"
#include "tensor/dtypes.h"
#include "tensor/layout.h"
#include "tensor/memory.h"
#include "tensor/shapes.h"
#include "tests/support/processes.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"

enum { IN = 70, HIDDEN = 60, CLASSES = 5, BATCH = 12, MOST_RANKS = 4, LAYOUTS = 20, DEPTH = 40, WIDTH = 256 };

typedef enum kind { ADAM, LOW, CODED, LAMB, ADAFACTOR, DEEP } kind; /* DEEP: ADAM of a larger model */

/* How a job keeps what it trains. level: a trek_shard; weights: of budgets, one digit for each rank of a process, and 1 more in
 * each further process; 0: no budgets. */
typedef struct layout {
    int processes, ranks, level, weights;
} layout;

static char folder[256];

static const char *path_of(const char *name)
{
    static char path[4][512];
    static int turn;
    turn = (turn + 1) % 4;
    snprintf(path[turn], sizeof path[turn], "%s/%s", folder, name);
    return path[turn];
}

/* --- a job -------------------------------------------------------------------------------------------------- */

static trek_graph *build_deep(trek_device device)
{
    trek_module *modules[DEPTH + 2];
    for (int k = 0; k < DEPTH + 2; k++)
        modules[k] = trek_nn_linear(k == 0 ? IN : WIDTH, k == DEPTH + 1 ? CLASSES : WIDTH, device);
    return trek_flow_build(trek_flow_from(trek_nn_sequential(modules, DEPTH + 2)));
}

static trek_graph *build(trek_device device, void *arg)
{
    if (*(const kind *)arg == DEEP)
        return build_deep(device);
    trek_dtype dtype = *(const kind *)arg == LOW || *(const kind *)arg == CODED ? TREK_BF16 : TREK_F32;
    trek_linear_opts up = { .in = IN, .out = HIDDEN, .dtype = dtype, .device = device };
    trek_batch_norm_opts norm = { .features = HIDDEN, .dtype = dtype, .device = device };
    trek_linear_opts down = { .in = HIDDEN, .out = CLASSES, .dtype = dtype, .device = device };
    trek_module *modules[4] = { trek_nn_linear_with(&up), trek_nn_batch_norm1d_with(&norm), trek_nn_gelu(),
                                trek_nn_linear_with(&down) };
    return trek_flow_build(trek_flow_from(trek_nn_sequential(modules, 4)));
}

static trek_optimizer_spec optimizer_of(kind what)
{
    return what == LAMB        ? trek_lamb(&(trek_lamb_opts){ .lr = 0.02, .weight_decay = 0.01 })
           : what == ADAFACTOR ? trek_adafactor(&(trek_adafactor_opts){ .lr = 0.02 })
           : what == CODED     ? trek_with_state(trek_adamw(&(trek_adam_opts){ .lr = 0.02 }), TREK_U8)
                               : trek_adamw(&(trek_adam_opts){ .lr = 0.02 });
}

/* Whether the ranks of a process have parameters of their own. */
static bool is_apart(const layout *as) { return as->processes == 1 || as->level > TREK_SHARD_STATE || as->weights % 2; }

static trek_graph *begin(kind what, const layout *as, int process)
{
    int64_t budgets[MOST_RANKS];
    for (int r = 0, digits = as->weights; r < as->ranks; r++, digits /= 10)
        budgets[r] = (int64_t)(digits % 10 + process) << 22;
    trek_seed(77);
    trek_graph *graph = build(test_device_of_rank(0), &what);
    trek_status status = trek_trainer_setup(graph, &(trek_trainer_opts){
        .build_replica = build, .arg = &what, .ranks = as->ranks, .share_params = is_apart(as) ? TREK_OFF : 0,
        .shard = (trek_shard)as->level, .bucket_bytes = 4096,
        .memory_budget = as->weights ? budgets : NULL, .n_memory_budget = as->weights ? as->ranks : 0,
        .optimizer = optimizer_of(what) });
    return status == TREK_OK ? graph : NULL;
}

static trek_status train(trek_graph *graph, kind what, int steps)
{
    trek_dtype dtype = what == LOW || what == CODED ? TREK_BF16 : TREK_F32;
    static float x[BATCH * IN];
    static int64_t labels[BATCH];
    for (int k = 0; k < steps && trek_error_status() == TREK_OK; k++) {
        trek_scope scope = trek_scope_begin();
        for (int i = 0; i < BATCH * IN; i++)
            x[i] = test_number((uint32_t)k, (uint32_t)i);
        for (int i = 0; i < BATCH; i++)
            labels[i] = (i + k) % CLASSES;
        trek_device device = test_device_of_rank(0);
        trek_var *in = trek_var_from(trek_tensor_from_data(x, trek_dims(BATCH, IN), TREK_F32, device));
        trek_var *label = trek_var_from(trek_tensor_from_data(labels, trek_dims(BATCH), TREK_I64, device));
        trek_graph_backward(graph, trek_cross_entropy(trek_graph_forward(graph, trek_cast(in, dtype)), label));
        trek_graph_step(graph);
        trek_scope_end(scope);
    }
    return trek_error_status();
}

/* Whether two checkpoints have the same tensors, to the bit. */
static bool are_same(const char *a, const char *b)
{
    trek_state *x = trek_state_read(a), *y = trek_state_read(b);
    bool same = x && y && trek_state_count(x) == trek_state_count(y) && x->n_aliases == y->n_aliases && x->checked && y->checked;
    for (int k = 0; same && k < trek_state_count(x); k++) {
        const trek_tensor *one = trek_state_tensor(x, k), *other = trek_state_find(y, trek_state_name(x, k));
        size_t bytes = (size_t)trek_tensor_numel(one) * trek_dtype_size(trek_tensor_dtype(one));
        same = other && trek_tensor_dtype(one) == trek_tensor_dtype(other) &&
               trek_shape_equal(trek_tensor_shape(one), trek_tensor_shape(other)) &&
               memcmp(trek_tensor_data(one), trek_tensor_data(other), bytes) == 0;
        if (!same)
            fprintf(stderr, "%s is not the same in %s and %s\n", trek_state_name(x, k), a, b);
    }
    if (!x || !y || trek_error_status() != TREK_OK)
        fprintf(stderr, "%s\n", trek_error());
    trek_state_free(&x);
    trek_state_free(&y);
    return same;
}

static int count_files(const char *stem)
{
    DIR *list = opendir(folder);
    int n = 0;
    for (struct dirent *entry; list && (entry = readdir(list));)
        n += strncmp(entry->d_name, stem, strlen(stem)) == 0;
    closedir(list);
    return n;
}

/* --- a process of a job ---------------------------------------------------------------------------------------- */

static int process;
static bool cannot_write; /* this process, once */

static void limit_files(rlim_t bytes)
{
    struct rlimit limit;
    getrlimit(RLIMIT_FSIZE, &limit);
    limit.rlim_cur = bytes ? bytes : limit.rlim_max;
    setrlimit(RLIMIT_FSIZE, &limit);
}

/* The file of one process cannot be written: nothing changes, and the next save succeeds. */
static bool fails_and_goes_on(trek_graph *graph, const char *path)
{
    const char *stem = strrchr(path, '/') + 1;
    char begin[128];
    snprintf(begin, sizeof begin, "%.*s.", (int)(strchr(stem, '.') - stem), stem);
    int files = process == 0 ? count_files(begin) : 0;
    limit_files(cannot_write ? 2000 : 0);
    trek_status status = trek_checkpoint_save(graph, NULL, path);
    limit_files(0);
    bool good = status == (cannot_write ? TREK_ERR_IO : TREK_ERR_PEER);
    if (!good)
        fprintf(stderr, "process %d: %s instead of a failure: %s\n", process, trek_status_name(status), trek_error());
    trek_error_clear();
    return good && (process > 0 || (count_files(begin) == files && are_same(path, path_of("base.safetensors"))));
}

static int64_t peak_since(int64_t before) { return trek_memory_usage(trek_cpu(0)).allocated_peak - before; }

static int64_t begin_to_measure(void)
{
    trek_memory_reset_peak(trek_cpu(0));
    return trek_memory_usage(trek_cpu(0)).allocated;
}

static bool is_below(const char *what, int64_t bytes, int64_t most)
{
    if (bytes > most)
        fprintf(stderr, "process %d: %s takes %lld bytes, more than %lld\n", process, what, (long long)bytes, (long long)most);
    return bytes <= most;
}

/* Nobody holds the state of all: a save takes one tensor, and room for what is sent; a load takes the parameters and the own part
 * of the state, before it changes anything. */
static bool takes_little_memory(trek_graph *graph, const layout *own)
{
    const int64_t tensor = (int64_t)WIDTH * WIDTH * 4, params = DEPTH * tensor, slack = 1 << 20;
    const char *paths[] = { path_of("deep.safetensors"), path_of("deep-set.safetensors.index.json") };
    bool good = true;
    for (int k = 0; k < 2 && good; k++) {
        int64_t before = begin_to_measure();
        good = trek_checkpoint_save(graph, NULL, paths[k]) == TREK_OK;
        good = good && is_below("a save", peak_since(before), tensor + (own->processes > 1 ? 4 << 20 : 0) + slack);
        before = begin_to_measure();
        good = good && trek_checkpoint_load(graph, NULL, paths[k]) == TREK_OK;
        good = good && is_below("a load", peak_since(before), params + 2 * params / own->processes + 2 * slack);
        good = good && (process > 0 || are_same(paths[k], path_of("base.safetensors")));
    }
    return good;
}

static int child(const char *text)
{
    int what, first, n, as, fails;
    layout own;
    char name[64];
    if (sscanf(text, "%d,%d,%d,%d,%d,%d,%d,%d,%d,%255s", &what, &own.processes, &own.ranks, &own.level, &own.weights, &first,
               &n, &as, &fails, folder) != 10)
        return 2;
    alarm(100);
    signal(SIGXFSZ, SIG_IGN);
    process = own.processes > 1 ? atoi(getenv("TREK_RANK")) : 0;
    cannot_write = process == fails;
    trek_comm *job = trek_comm_init(NULL);
    trek_graph *graph = job ? begin((kind)what, &own, process) : NULL;
    bool good = graph;
    if (what == DEEP) {
        good = good && trek_checkpoint_load(graph, NULL, path_of("base.safetensors")) == TREK_OK;
        good = good && takes_little_memory(graph, &own);
    }
    for (int k = first; k < first + n && good; k++) {
        snprintf(name, sizeof name, k < 0 ? "base.safetensors" : "set-%d.safetensors.index.json", k);
        good = trek_checkpoint_load(graph, NULL, path_of(name)) == TREK_OK;
        snprintf(name, sizeof name, first < 0 ? "set-%d.safetensors.index.json" : "again-%d.safetensors.index.json", as);
        good = good && trek_checkpoint_save(graph, NULL, path_of(name)) == TREK_OK;
        good = good && (process > 0 || are_same(path_of(name), path_of("base.safetensors")));
        good = good && (fails < 0 || fails_and_goes_on(graph, path_of(name)));
        good = good && (fails < 0 || trek_checkpoint_save(graph, NULL, path_of(name)) == TREK_OK);
        snprintf(name, sizeof name, "one-%d.safetensors", as);
        good = good && (k > first || trek_checkpoint_save(graph, NULL, path_of(name)) == TREK_OK);
        good = good && (process > 0 || are_same(path_of(name), path_of("base.safetensors")));
    }
    if (!good)
        fprintf(stderr, "process %d of %d: %s\n", process, own.processes, trek_error());
    trek_graph_free(&graph);
    trek_comm_free(&job);
    return good ? 0 : 3;
}

/* --- many jobs ------------------------------------------------------------------------------------------------- */

/* Runs a job that loads sets `first` to first + n - 1 (-1: what one process has saved) and saves each again. fails: the process
 * whose files cannot be written once; -1: none. */
static void launch(kind what, const layout *own, int first, int n, int as, int fails)
{
    char text[600];
    snprintf(text, sizeof text, "%d,%d,%d,%d,%d,%d,%d,%d,%d,%s", what, own->processes, own->ranks, own->level, own->weights,
             first, n, as, fails, folder);
    int code = processes_launch(own->processes, false, (const char *[]){ "TREK_TEST_CHILD", text, NULL });
    if (code != 0)
        fail_msg("kind %d, %d processes of %d ranks, level %d, budgets %d, sets %d to %d: status %d", what, own->processes,
                 own->ranks, own->level, own->weights, first, first + n - 1, code);
}

static layout draw(uint32_t *seed)
{
    layout own = { 0 };
    uint32_t numbers[6];
    for (int k = 0; k < 6; k++)
        numbers[k] = *seed = *seed * 1664525u + 1013904223u;
    own.processes = 1 + (int)(numbers[0] >> 20) % 4;
    own.ranks = own.processes > 2 ? 1 : 1 + (int)(numbers[1] >> 20) % (own.processes == 1 ? MOST_RANKS : 2);
    own.level = own.processes * own.ranks > 1 ? (int)(numbers[2] >> 20) % 4 : TREK_SHARD_NONE;
    if (test_device_of_rank(0).type != TREK_CPU && own.level > TREK_SHARD_STATE)
        own.level = TREK_SHARD_STATE;
    for (int r = 0; r < own.ranks && own.level > TREK_SHARD_NONE && (numbers[3] >> 20) % 2; r++)
        own.weights = own.weights * 10 + 1 + (int)(numbers[4] >> (8 + 3 * r)) % 7;
    return own;
}

static void make_base(kind what)
{
    trek_graph *graph = begin(what, &(layout){ 1, 1, 0, 0 }, 0);
    assert_non_null(graph);
    SUCCEEDS(train(graph, what, 3));
    SUCCEEDS(trek_checkpoint_save(graph, NULL, path_of("base.safetensors")));
    trek_graph_free(&graph);
}

/* Each set is saved by one layout and loaded by every other one. */
static void any_two(kind what, int layouts)
{
    layout drawn[LAYOUTS];
    uint32_t seed = 17 + (uint32_t)what;
    make_base(what);
    for (int k = 0; k < layouts; k++) {
        drawn[k] = draw(&seed);
        launch(what, &drawn[k], -1, 1, k, -1);
    }
    for (int k = 0; k < layouts; k++)
        launch(what, &drawn[k], 0, layouts, k, -1);
}

static void any_two_layouts(void **state) { any_two(ADAM, getenv("TREK_TEST_SHORT") ? 4 : LAYOUTS); }

static void other_states(void **state)
{
    any_two(LOW, 4);
    any_two(CODED, 4);
    any_two(LAMB, 4);
    any_two(ADAFACTOR, 4);
}

static void failed_saves(void **state)
{
    make_base(ADAM);
    for (int processes = 1; processes <= 3; processes++)
        for (int fails = 0; fails < processes; fails++)
            launch(ADAM, &(layout){ processes, 1, processes > 1, 0 }, -1, 1, 0, fails);
    assert_int_equal(count_files("set-0.safetensors"), 1);
    assert_int_equal(count_files("set-0."), 4); /* the index, and the files of the last save */
}

static void memory(void **state)
{
    make_base(DEEP);
    launch(DEEP, &(layout){ 1, 4, 1, 0 }, 0, 0, 0, -1);
    launch(DEEP, &(layout){ 3, 1, 1, 0 }, 0, 0, 0, -1);
}

/* What a save leaves that dies before its index is in place is removed by the next one. */
static void leftovers(void **state)
{
    make_base(ADAM);
    launch(ADAM, &(layout){ 2, 1, 1, 0 }, -1, 1, 0, -1);
    for (int k = 0; k < 2; k++) {
        FILE *file = fopen(path_of(k ? "set-0.7-00001-of-00003.safetensors" : "set-0.other"), "w");
        fclose(file);
    }
    launch(ADAM, &(layout){ 2, 1, 1, 0 }, -1, 1, 0, -1);
    assert_int_equal(access(path_of("set-0.7-00001-of-00003.safetensors"), F_OK), -1);
    assert_int_equal(access(path_of("set-0.other"), F_OK), 0);
    assert_int_equal(access(path_of("set-0.8-00001-of-00002.safetensors"), F_OK), 0);
    assert_int_equal(access(path_of("set-0.8-00002-of-00002.safetensors"), F_OK), 0);
    assert_int_equal(count_files("set-0."), 4);
}

/* Everybody writes about as much, and who has most of a tensor writes it. */
static void shares(void **state)
{
    enum { N = 40, P = 3 };
    int64_t bytes[N], kept[N * P], load[P] = { 0 }, all = 0, most = 0;
    int writer[N];
    for (int k = 0; k < N; k++) {
        bytes[k] = 1000 + 37 * k;
        all += bytes[k];
        most = bytes[k];
        for (int p = 0; p < P; p++)
            kept[k * P + p] = k % 4 == 0 ? bytes[k] : k == 5 ? (p == 0 ? bytes[k] : -1) : p == k % P ? bytes[k] - 20 : 10;
    }
    SUCCEEDS(trek_checkpoint_divide(&(trek_checkpoint_shares){ N, P, bytes, kept }, writer));
    int moved = 0;
    for (int k = 0; k < N; k++) {
        load[writer[k]] += bytes[k];
        moved += k % 4 != 0 && k != 5 && writer[k] != k % P;
    }
    assert_int_equal(writer[5], 0);
    assert_true(moved <= 2);
    for (int p = 0; p < P; p++)
        assert_true(load[p] <= all / P + most && load[p] >= all / P - 2 * most);
}

/* Damage to any tensor is noticed, also to what ranks read in parts, and nothing has changed then. */
static void damaged(void **state)
{
    static const layout readers[] = { { 1, 1, 0, 0 }, { 1, 3, 1, 0 }, { 1, 2, 1, 25 } };
    make_base(ADAM);
    launch(ADAM, &(layout){ 2, 1, 1, 0 }, -1, 1, 0, -1);
    for (int k = 0; k < 3; k++) {
        trek_graph *graph = begin(ADAM, &readers[k], 0);
        SUCCEEDS(trek_checkpoint_save(graph, NULL, path_of("before.safetensors")));
        for (int part = 1; part <= 2; part++) {
            char name[64];
            snprintf(name, sizeof name, "set-0.1-%05d-of-00002.safetensors", part);
            FILE *file = fopen(path_of(name), "r+");
            assert_int_equal(fseek(file, 0, SEEK_END), 0);
            long size = ftell(file);
            for (long back = 1; back < size - 4000; back += 4001) {
                fseek(file, -back, SEEK_END);
                int byte = getc(file);
                fseek(file, -back, SEEK_END);
                putc(byte ^ 4, file);
                fflush(file);
                FAILS(trek_checkpoint_load(graph, NULL, path_of("set-0.safetensors.index.json")), TREK_ERR_FORMAT, "checksum");
                fseek(file, -back, SEEK_END);
                putc(byte, file);
                fflush(file);
            }
            fclose(file);
        }
        SUCCEEDS(trek_checkpoint_save(graph, NULL, path_of("after.safetensors")));
        assert_true(are_same(path_of("before.safetensors"), path_of("after.safetensors")));
        SUCCEEDS(trek_checkpoint_load(graph, NULL, path_of("set-0.safetensors.index.json")));
        SUCCEEDS(trek_checkpoint_save(graph, NULL, path_of("after.safetensors")));
        assert_true(are_same(path_of("base.safetensors"), path_of("after.safetensors")));
        trek_graph_free(&graph);
    }
}

static void refused(void **state)
{
    make_base(ADAM);
    trek_graph *graph = begin(ADAM, &(layout){ 1, 2, 1, 0 }, 0);
    SUCCEEDS(trek_checkpoint_load(graph, NULL, path_of("base.safetensors")));
    FAILS(trek_checkpoint_save(graph, NULL, path_of("no/folder.index.json")), TREK_ERR_IO, "no/folder");
    SUCCEEDS(trek_checkpoint_save(graph, NULL, path_of("bare.index.json")));
    assert_int_equal(access(path_of("bare.1-00001-of-00001.safetensors"), F_OK), 0);
    SUCCEEDS(trek_checkpoint_load(graph, NULL, path_of("bare.index.json")));
    unlink(path_of("bare.1-00001-of-00001.safetensors"));
    FAILS(trek_checkpoint_load(graph, NULL, path_of("bare.index.json")), TREK_ERR_IO, "bare.1-00001-of-00001.safetensors");
    trek_graph_free(&graph);
}

/* --- the program ------------------------------------------------------------------------------------------------- */

static int make_folder(void **state)
{
    trek_error_clear();
    alarm(400);
    snprintf(folder, sizeof folder, "%s/trek-set-XXXXXX", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    DIR *list = opendir(folder);
    for (struct dirent *entry; list && (entry = readdir(list));)
        if (entry->d_name[0] != '.')
            unlinkat(dirfd(list), entry->d_name, 0);
    if (list)
        closedir(list);
    return rmdir(folder);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make_folder, remove_folder)

int main(void)
{
    if (getenv("TREK_TEST_CHILD"))
        return child(getenv("TREK_TEST_CHILD"));
    const struct CMUnitTest tests[] = { TEST(shares), TEST(refused), TEST(damaged), TEST(leftovers), TEST(failed_saves),
                                        TEST(memory),
                                        TEST(other_states),
                                        TEST(any_two_layouts) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
