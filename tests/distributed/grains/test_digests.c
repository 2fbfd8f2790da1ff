/* SPDX-License-Identifier: Apache-2.0 */
/* Digests: of bytes, whatever their order, and of steps, which show one change of a sample, a gradient or a parameter; the file
 * of them. That they are the same for any ranks and processes is a part of what test_grains and test_grain_jobs compare. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "autograd/ops.h"
#include "autograd/var_internal.h"
#include "data/loader.h"
#include "data/loader_position.h"
#include "distributed/digests.h"
#include "distributed/grains/digest.h"
#include "graph/graph_loader.h"
#include "graph/passes.h"
#include "graph/settings.h"
#include "nn/module_tree.h"
#include "optim/optimizers.h"
#include "tests/distributed/grains/grain_runs.h"
#include "tests/support/support.h"
#include "tests/support/unit.h"

/* --- of bytes ------------------------------------------------------------------------------------------ */

static trek_digest digest_of(uint64_t key, const void *bytes, size_t size)
{
    trek_digest digest = { { 0, 0 } };
    trek_digest_add(&digest, key, bytes, size);
    return digest;
}

/* What the header says, word by word. */
static trek_digest slow_digest(uint64_t key, const unsigned char *bytes, size_t size)
{
    static const uint64_t keys[8] = { 0xbe4ba423396cfeb8u, 0x1cad21f72c81017cu, 0xdb979083e96dd4deu, 0x1f67b3b7a4a44072u,
                                      0x78e5c0cc4ee679cbu, 0x2172ffcc7dd05a82u, 0x8e2443f7744608b8u, 0x4c263a81e69035e0u };
    trek_digest sum = { { 0, 0 } };
    for (size_t at = 0; at < size; at += 1024, key++) {
        size_t n = size - at < 1024 ? size - at : 1024;
        uint64_t lanes[8] = { 0 }, halves[2] = { key * 0xd6e8feb86659fd93u + n, key * 0xa0761d6478bd642fu + ~(uint64_t)n };
        for (size_t i = 0; i < (n + 63) / 64 * 8; i++) {
            uint64_t w = 0;
            for (size_t k = 0; k < 8; k++)
                w |= i * 8 + k < n ? (uint64_t)bytes[at + i * 8 + k] << (8 * k) : 0;
            uint64_t x = w ^ (keys[i % 8] + i / 8 * 0x9e3779b97f4a7c15u);
            lanes[i % 8] += (x & 0xffffffffu) * (x >> 32);
            lanes[(i % 8) ^ 1] += w;
        }
        for (int h = 0; h < 2; h++) {
            for (int j = 0; j < 8; j++) {
                uint64_t x = halves[h] ^ lanes[h == 0 ? j : 7 - j];
                x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
                x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
                halves[h] = x ^ (x >> 31);
            }
            sum.half[h] += halves[h];
        }
    }
    return sum;
}

static void test_bytes(void **state)
{
    static unsigned char bytes[5000];
    for (size_t k = 0; k < sizeof bytes; k++)
        bytes[k] = (unsigned char)(int)(128 * test_number(7, (uint32_t)k));
    for (size_t size = 0; size <= sizeof bytes; size += 1 + size / 9) {
        trek_digest digest = digest_of(size, bytes, size), slow = slow_digest(size, bytes, size);
        assert_true(trek_digest_equal(&digest, &slow));
    }
    /* blocks in another order, and by several */
    trek_digest whole = digest_of(3, bytes, sizeof bytes), parts = digest_of(5, bytes + 2048, sizeof bytes - 2048);
    trek_digest first = digest_of(3, bytes, 2048);
    trek_digest_join(&parts, &first);
    assert_true(trek_digest_equal(&whole, &parts));
    trek_digest moved = digest_of(4, bytes, sizeof bytes);
    assert_false(trek_digest_equal(&whole, &moved));
}

/* Every bit counts, in both halves, and so does the length; no two of 40,000 changes give the same. */
static int by_half(const void *a, const void *b) { return memcmp(a, b, sizeof(uint64_t)); }

static void test_bits(void **state)
{
    static unsigned char bytes[5000];
    static uint64_t halves[2][5000 * 8 + 1];
    size_t n = 0;
    for (size_t k = 0; k < sizeof bytes; k++)
        bytes[k] = (unsigned char)(int)(k % 3 == 0 ? 128 * test_number(8, (uint32_t)k) : 0);
    for (size_t bit = 0; bit <= sizeof bytes * 8; bit++) {
        if (bit < sizeof bytes * 8)
            bytes[bit / 8] ^= (unsigned char)(1 << bit % 8);
        trek_digest digest = digest_of(0, bytes, sizeof bytes);
        if (bit < sizeof bytes * 8)
            bytes[bit / 8] ^= (unsigned char)(1 << bit % 8);
        halves[0][n] = digest.half[0];
        halves[1][n++] = digest.half[1];
    }
    for (int h = 0; h < 2; h++) {
        qsort(halves[h], n, sizeof **halves, by_half);
        for (size_t k = 1; k < n; k++)
            assert_true(halves[h][k] != halves[h][k - 1]);
    }
    const unsigned char zeros[70] = { 0 };
    for (size_t size = 1; size < sizeof zeros; size++) {
        trek_digest a = digest_of(0, zeros, size), b = digest_of(0, zeros, size + 1);
        assert_false(trek_digest_equal(&a, &b));
    }
}

/* --- of steps --------------------------------------------------------------------------------------------- */

typedef struct made {
    int steps, ranks;
    uint64_t seed;           /* of the order of samples */
    double factor;           /* of the loss of sample 20, if it is 0 or above */
    int changed;             /* the step before which a parameter is changed by one bit; 0: none */
    double lr;
    const char *file;
} made;

static trek_var *loss(trek_graph *graph, trek_var *output, const trek_batch *batch, void *arg)
{
    const made *m = arg;
    trek_var *mean = trek_cross_entropy(output, trek_batch_get(batch, "label"));
    for (int64_t k = 0; k < trek_batch_size(batch); k++)
        if (trek_batch_indices(batch)[k] == 20 && m->factor != 1)
            return trek_mul_scalar(mean, m->factor);
    return mean;
}

static void flip(trek_graph *graph)
{
    trek_var *w = trek_module_find(trek_graph_module(graph), "0.a.weight");
    assert_non_null(w);
    grain_flip(trek_var_device(w), w->data->data + 4, 1);
    trek_graph_parameters_changed(graph);
}

static trek_graph *train(const made *m, trek_step_digest *digests)
{
    int model = MLP;
    trek_seed(3);
    trek_loader *loader = trek_loader_new(grain_dataset(), &(trek_loader_opts){ .batch_size = 12, .shuffle = true,
                                                                               .seed = m->seed });
    trek_device room[GRAIN_RANKS];
    const trek_device *devices = grain_devices(NULL, m->ranks, false, room);
    trek_graph *graph = grain_build(room[0], &model);
    assert_int_equal(trek_graph_set_loader(graph, loader, "x"), TREK_OK);
    assert_int_equal(trek_graph_set_loss(graph, loss, (void *)(uintptr_t)m), TREK_OK);
    trek_trainer_opts o = { .build_replica = grain_build, .arg = &model, .ranks = m->ranks, .devices = devices, .grain = 5,
                            .digests = m->file,
                            .optimizer = trek_adam(&(trek_adam_opts){ .lr = m->lr }), .balance = TREK_OFF };
    if (trek_trainer_setup(graph, &o) != TREK_OK)
        fail_msg("%s", trek_error());
    for (int epoch = 0; trek_graph_steps(graph) < m->steps; epoch++) {
        trek_graph_start(graph, epoch);
        for (trek_batch *batch; (batch = trek_graph_next(graph));) {
            int64_t step = trek_graph_steps(graph) + 1;
            if (step > m->steps)
                continue;
            if (step == m->changed)
                flip(graph);
            trek_graph_train_batch(graph, batch);
            assert_int_equal(trek_graph_step(graph), TREK_OK);
            assert_int_equal(trek_trainer_digest(graph, step, &digests[step - 1]), TREK_OK);
        }
    }
    trek_graph_set_loader(graph, NULL, NULL);
    trek_loader_free(&loader);
    return graph;
}

static void train_only(const made *m, trek_step_digest *digests)
{
    trek_graph *graph = train(m, digests);
    trek_graph_free(&graph);
    assert_int_equal(trek_error_status(), TREK_OK);
}

static bool same(const uint64_t *a, const uint64_t *b) { return a[0] == b[0] && a[1] == b[1]; }

enum { STEPS = 6 };

/* What differs from which step on, and in what. */
static void test_causes(void **state)
{
    trek_step_digest base[STEPS], other[STEPS];
    const made plain = { .steps = STEPS, .ranks = 1, .factor = 1, .lr = 0.01 };
    train_only(&plain, base);
    made m = plain;
    m.ranks = 3;
    train_only(&m, other);
    assert_memory_equal(base, other, sizeof base);
    m = plain;
    m.seed = 1; /* other samples */
    train_only(&m, other);
    assert_false(same(base[0].samples, other[0].samples));
    m = plain;
    m.lr = 0.0100001; /* another update */
    train_only(&m, other);
    assert_true(same(base[0].samples, other[0].samples) && same(base[0].gradients, other[0].gradients));
    assert_true(base[0].loss == other[0].loss && !same(base[0].parameters, other[0].parameters));
    m = plain;
    m.factor = 1.5; /* one sample of the first epoch, which has 5 steps */
    train_only(&m, other);
    int first = 0;
    while (first < STEPS && base[first].loss == other[first].loss)
        first++;
    assert_true(first < 5);
    for (int k = 0; k < first; k++)
        assert_memory_equal(&base[k], &other[k], sizeof base[k]);
    assert_true(same(base[first].samples, other[first].samples) && !same(base[first].gradients, other[first].gradients));
    m = plain;
    m.changed = 4; /* one bit of a parameter */
    train_only(&m, other);
    assert_memory_equal(base, other, 3 * sizeof *base);
    assert_true(same(base[3].samples, other[3].samples) && !same(base[3].parameters, other[3].parameters));
}

/* Only the last ones are kept. */
static void test_kept(void **state)
{
    static trek_step_digest digests[TREK_DIGESTS_KEPT + 3], found;
    const made m = { .steps = TREK_DIGESTS_KEPT + 3, .ranks = 1, .factor = 1, .lr = 0.01 };
    trek_graph *graph = train(&m, digests);
    for (int64_t step = 4; step <= m.steps; step++) {
        assert_int_equal(trek_trainer_digest(graph, step, &found), TREK_OK);
        assert_memory_equal(&found, &digests[step - 1], sizeof found);
    }
    const int64_t wrong[] = { -1, 0, 3, m.steps + 1, INT64_MIN };
    for (size_t k = 0; k < sizeof wrong / sizeof *wrong; k++) {
        assert_int_equal(trek_trainer_digest(graph, wrong[k], &found), TREK_ERR_ARGUMENT);
        trek_error_clear();
    }
    trek_graph_free(&graph);
    int model = MLP;
    graph = grain_build(trek_cpu(0), &model);
    assert_int_equal(trek_trainer_digest(graph, 1, &found), TREK_ERR_STATE);
    trek_error_clear();
    trek_graph_free(&graph);
}

/* --- the file ---------------------------------------------------------------------------------------------- */

static int lines_of(const char *path, const char *begin, char lines[][400], int most)
{
    FILE *file = fopen(path, "r");
    int n = 0;
    assert_non_null(file);
    for (char line[400]; fgets(line, sizeof line, file);)
        if (strncmp(line, begin, strlen(begin)) == 0 && n < most)
            strcpy(lines[n++], line);
    fclose(file);
    return n;
}

static void test_file(void **state)
{
    char path[2][40] = { "/tmp/trek-digests-XXXXXX", "/tmp/trek-digests-XXXXXX" };
    static char lines[2][400][400];
    trek_step_digest digests[STEPS];
    for (int k = 0; k < 2; k++) {
        close(mkstemp(path[k]));
        train_only(&(made){ .steps = STEPS, .ranks = 1 + 2 * k, .factor = 1, .lr = 0.01, .file = path[k] }, digests);
        assert_int_equal(lines_of(path[k], "step ", lines[k], 400), STEPS);
    }
    for (int step = 1; step <= STEPS; step++) {
        char expected[400];
        const trek_step_digest *d = &digests[step - 1];
        snprintf(expected, sizeof expected,
                 "step %d parameters %016llx%016llx gradients %016llx%016llx samples %016llx%016llx loss ", step,
                 (unsigned long long)d->parameters[0], (unsigned long long)d->parameters[1], (unsigned long long)d->gradients[0],
                 (unsigned long long)d->gradients[1], (unsigned long long)d->samples[0], (unsigned long long)d->samples[1]);
        assert_memory_equal(lines[0][step - 1], expected, strlen(expected));
        assert_true(strtod(lines[0][step - 1] + strlen(expected), NULL) == d->loss);
        assert_string_equal(lines[0][step - 1], lines[1][step - 1]);
    }
    int grains = lines_of(path[0], "grain ", lines[0], 400); /* 3 in each step but the last of the epoch, which has 1 */
    assert_int_equal(grains, 4 * 3 + 1 + 3);
    assert_int_equal(lines_of(path[1], "grain ", lines[1], 400), grains);
    for (int k = 0; k < grains; k++)
        assert_string_equal(lines[0][k], lines[1][k]);
    assert_true(lines_of(path[0], "# program /", lines[0], 400) == 1);
    for (int k = 0; k < 2; k++)
        unlink(path[k]);
    /* a file that cannot be written does not end the training */
    train_only(&(made){ .steps = 2, .ranks = 1, .factor = 1, .lr = 0.01, .file = "/nowhere/digests" }, digests);
}

static void test_refused(void **state)
{
    int model = MLP;
    trek_graph *graph = grain_build(trek_cpu(0), &model);
    assert_int_equal(trek_trainer_setup(graph, &(trek_trainer_opts){ .ranks = 1, .digests = "digests" }), TREK_ERR_ARGUMENT);
    assert_non_null(strstr(trek_error(), ".digests: digests, without .grain"));
    trek_error_clear();
    trek_graph_free(&graph);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes), cmocka_unit_test(test_bits), cmocka_unit_test(test_causes), cmocka_unit_test(test_kept),
        cmocka_unit_test(test_file), cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
