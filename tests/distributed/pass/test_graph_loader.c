/* SPDX-License-Identifier: Apache-2.0 */
/* Loader and loss on the graph: passes per rank and windows on N ranks against one
 * device that is given the same samples. */
#include <stdatomic.h>
#include <unistd.h>

#include "autograd/backward.h"
#include "autograd/ops.h"
#include "data/dataset_class.h"
#include "data/loader_position.h"
#include "distributed/stepper_internal.h"
#include "graph/amp.h"
#include "graph/constants.h"
#include "graph/flow.h"
#include "graph/timeline.h"
#include "nn/layers.h"
#include "nn/module_tree.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"
#include "tests/support/training.h"

static result many, one, again;

static void compare(const run *c)
{
    training_run(c, &many);
    training_on_one(c, &many, &one);
    for (int k = 0; k < many.passes && c->accumulate <= 1; k++)
        if (fabs(many.losses[k] - one.losses[k]) > 2e-6 * (1 + fabs(one.losses[k])))
            fail_msg("world %d, loss %d, passes %d: pass %d has loss %.9g instead of %.9g", c->world, (int)c->loss, c->passes, k,
                     many.losses[k], one.losses[k]);
    training_compare(c, &many, &one);
    trek_plan_free(&many.made);
}

/* --- tests ------------------------------------------------------------------------------------ */

static const int worlds[] = { 1, 2, 3, 5 };

/* On devices that are not real ones, all of it would take minutes. */
static bool brief(void) { return getenv("TREK_TEST_SHORT") != NULL; }

static void test_batches(void **state)
{
    for (int w = 0; w < 4; w += 1 + 2 * brief())
        for (int loss = 0; loss < N_LOSSES; loss++)
            for (int passes = 1; passes <= 2; passes++) {
                run c = { .world = worlds[w], .passes = passes, .batch = 8, .loss = loss, .clip = passes == 2,
                          .optimizer = loss == 0 ? training_adam() : training_momentum() };
                compare(&c);
                c.separate = true;
                if (test_on_cpu()) /* GPUs always have */
                    compare(&c);
            }
}

static void test_small_batches(void **state)
{
    for (int w = 1; w < 4; w++) /* ranks without samples, or without labels that count; a last batch of one */
        for (int passes = 1; passes <= 2; passes++)
            compare(&(run){ .world = worlds[w], .passes = passes, .batch = w == 1 ? 3 : 4,
                            .loss = passes == 2 ? BY_LABELS : BY_STATED, .optimizer = training_momentum() });
}

static void test_windows(void **state)
{
    for (int w = 1; w < 4; w++)
        for (int loss = 0; loss < N_LOSSES; loss++)
            for (int passes = 1; passes <= 2; passes++)
                compare(&(run){ .world = worlds[w], .passes = passes, .batch = w == 3 ? 1 : 2, .loss = loss, .windows = true,
                                .separate = loss == 1, .clip = loss == 2,
                                .optimizer = loss == 0 ? training_adam() : training_momentum() });
}

/* Ranks read ahead, windows and their rows of batches, until the loader is taken away, which may then be freed, and what its
 * dataset reads from too; or until it is freed. */
static atomic_bool gone;

static int64_t slow_length(const trek_dataset *self)
{
    return 64;
}

static trek_status slow_get(trek_dataset *self, const trek_fetch *fetch, trek_tensor **out)
{
    usleep(500);
    assert_false(atomic_load(&gone));
    out[0] = trek_tensor_zeros(trek_dims(fetch->n, IN), TREK_F64, trek_cpu(0));
    out[1] = trek_tensor_zeros(trek_dims(fetch->n, 1), TREK_F64, trek_cpu(0));
    return trek_error_status();
}

static void test_loader_taken_away(void **state)
{
    static const char *const names[] = { "x", "target" };
    static const trek_dataset_class slow = { .name = "slow", .size = sizeof(trek_dataset), .length = slow_length, .get = slow_get,
                                             .n_fields = 2, .fields = names };
    loss_kind kind = BY_ROWS;
    for (int way = 0; way < 6; way++) {
        int other = way / 2; /* 2: it is not taken away */
        run c = { .world = 2, .passes = 1, .batch = 2, .windows = way % 2, .optimizer = training_momentum() };
        atomic_store(&gone, false);
        trek_loader *second = trek_loader_new(training_dataset(), &(trek_loader_opts){ .batch_size = 2 });
        trek_loader *loader = trek_loader_new(trek_dataset_new(&slow), &(trek_loader_opts){ .batch_size = 2, .prefetch = 4 });
        trek_graph *graph = training_set_up(&c, loader);
        assert_int_equal(trek_graph_set_loss(graph, training_loss, &kind), TREK_OK);
        assert_int_equal(trek_graph_start(graph, 0), TREK_OK);
        for (int k = 0; k < 2; k++) {
            assert_non_null(trek_graph_train_batch(graph, trek_graph_next(graph)));
            assert_int_equal(trek_graph_step(graph), TREK_OK);
        }
        if (other < 2)
            assert_int_equal(trek_graph_set_loader(graph, other ? second : NULL, other ? "x" : NULL), TREK_OK);
        trek_loader_free(&loader);
        atomic_store(&gone, true);
        usleep(5000);
        trek_graph_free(&graph);
        trek_loader_free(&second);
    }
    assert_int_equal(trek_error_status(), TREK_OK);
}

/* Several passes in a step: those whose weights are known before their backward are seeded by them, and nothing is put aside;
 * of a window they are known when it is over. */
static void gradients_put_aside(void **state)
{
    for (int windows = 0; windows < 2; windows++)
        for (int loss = 0; loss < N_LOSSES; loss++) {
            loss_kind kind = (loss_kind)loss;
            trek_loader *loader = trek_loader_new(training_dataset(), &(trek_loader_opts){ .batch_size = 4 });
            run c = { .world = 2, .passes = 2, .windows = windows, .loss = kind, .optimizer = training_momentum() };
            trek_graph *graph = training_set_up(&c, loader);
            if (kind == BY_TEACHER)
                training_set_constants(graph);
            trek_graph_set_loss(graph, training_loss, &kind);
            trek_graph_start(graph, 0);
            for (int k = 0; k < 2; k++)
                assert_non_null(trek_graph_train_batch(graph, trek_graph_next(graph)));
            const trek_step *s = trek_graph_ranks(graph);
            for (int r = 0; r < 2; r++)
                assert_int_equal(s->team->replicas[r].stashed != NULL, windows);
            assert_true(windows || s->state.factor == 1);
            assert_int_equal(trek_graph_step(graph), TREK_OK);
            trek_graph_free(&graph);
            trek_loader_free(&loader);
        }
}

/* --- a pass that fails, and is made again */

static atomic_bool fails_once; /* the loss of the rank that has sample 11 */

static trek_var *loss_that_fails_once(trek_graph *graph, trek_var *output, const trek_batch *batch, void *arg)
{
    for (int64_t k = 0; k < trek_batch_size(batch); k++)
        if (trek_batch_indices(batch)[k] == 11 && atomic_exchange(&fails_once, false))
            return trek_fail_null(TREK_ERR_CALLBACK, "sample 11");
    return training_loss(graph, output, batch, arg);
}

/* The second batch has sample 11. */
static void train_failing(int world, bool fails, result *to)
{
    loss_kind kind = BY_LABELS;
    run c = { .world = world, .passes = 1, .batch = 8, .loss = BY_LABELS, .separate = world == 3,
              .optimizer = training_momentum() };
    trek_loader *loader = trek_loader_new(training_dataset(), &(trek_loader_opts){ .batch_size = 8 });
    trek_graph *graph = training_set_up(&c, loader);
    SUCCEEDS(trek_graph_set_loss(graph, loss_that_fails_once, &kind));
    SUCCEEDS(trek_graph_start(graph, 0));
    for (int step = 0; step < 4; step++) {
        trek_batch *batch = trek_graph_next(graph);
        if (step == 1 && fails) {
            atomic_store(&fails_once, true);
            REFUSED(trek_graph_train_batch(graph, batch), TREK_ERR_CALLBACK, "sample 11");
            SUCCEEDS(trek_graph_zero_grad(graph));
        }
        assert_non_null(trek_graph_train_batch(graph, batch));
        SUCCEEDS(trek_graph_step(graph));
    }
    to->n = 0;
    training_params(graph, to);
    trek_graph_free(&graph);
    trek_loader_free(&loader);
}

/* Dropout has the masks that it would have had. */
static void failed_passes_draw_nothing(void **state)
{
    for (int world = 1; world <= (brief() ? 2 : 3); world++) {
        train_failing(world, false, &one);
        train_failing(world, true, &many);
        assert_int_equal(many.n, one.n);
        assert_memory_equal(many.params, one.params, (size_t)one.n * sizeof *one.params);
    }
}

/* The passes of a step are one large batch, on every number of ranks: fewer and more of them, too, than were announced. */
static void test_accumulate(void **state)
{
    for (int w = 0; w < 4; w += 1 + 2 * brief())
        for (int loss = 0; loss < N_LOSSES; loss++)
            for (int way = 0; way < 3; way++) {
                run c = { .world = worlds[w], .passes = 2 + (loss + way) % 3, .accumulate = 3, .batch = way == 1 ? 2 : 5,
                          .loss = loss,
                          .gathered = way == 0, .windows = way == 1, .epochs = way == 1 ? 6 : 2, .clip = loss == 2,
                          .scaled = loss == 1,
                          .optimizer = loss == 0 ? training_adam() : training_momentum() };
                if (way == 1 && w == 0)
                    continue;
                compare(&c);
                c.separate = true;
                if (test_on_cpu() && w > 0)
                    compare(&c);
            }
    compare(&(run){ .world = 3, .passes = 2, .accumulate = 2, .batch = 5, .loss = BY_LABELS, .optimizer = training_momentum(),
                    .slowdown = "1,30s,3s", .balance = 1 });
}

/* Weights of classes and a teacher, which every rank has on its device. */
static void test_teacher(void **state)
{
    for (int w = 0; w < 4; w += 1 + 2 * brief())
        for (int way = 0; way < 6; way++) {
            run c = { .world = worlds[w], .passes = 1 + way % 2, .accumulate = way, .batch = way == 1 ? 2 : 7, .loss = BY_TEACHER,
                      .late = way % 2, .gathered = way == 0,
                      .windows = way == 1, .epochs = way == 1 ? 6 : 2, .separate = way > 2, .optimizer = training_momentum() };
            if (way != 1 || w > 0)
                compare(&c);
        }
}

static trek_var *forgetful_loss(trek_graph *graph, trek_var *output, const trek_batch *batch, void *arg)
{
    return trek_cross_entropy_with(output, trek_batch_get(batch, "label"), &(trek_cross_entropy_opts){ .weight = arg });
}

/* One value on one CPU is every CPU rank's. */
static void test_foreign_values(void **state)
{
    if (!test_on_cpu())
        skip();
    double weights[CLASSES] = { 1, 2, 3, 4 }, sums[2] = { 0 };
    trek_tensor *tensor = trek_tensor_from_data(weights, trek_dims(CLASSES), TREK_F64, trek_cpu(0));
    trek_var *value = trek_var_new(tensor, false);
    for (int k = 0; k < 2; k++) {
        trek_loader *loader = trek_loader_new(training_dataset(), &(trek_loader_opts){ .batch_size = 7 });
        run c = { .world = 1 + 2 * k, .passes = 1, .optimizer = training_momentum() };
        trek_graph *graph = training_set_up(&c, loader);
        trek_graph_set_loss(graph, forgetful_loss, value);
        trek_graph_start(graph, 0);
        for (trek_batch *batch; (batch = trek_graph_next(graph)); trek_graph_step(graph))
            assert_non_null(trek_graph_train_batch(graph, batch));
        assert_int_equal(trek_error_status(), TREK_OK);
        training_params(graph, &many);
        for (int i = 0; i < many.n; i++)
            sums[k] += many.params[i] * (1 + i % 5);
        trek_graph_free(&graph);
        trek_loader_free(&loader);
    }
    assert_float_equal(sums[0], sums[1], 1e-10);
    trek_var_release(value);
    trek_tensor_release(tensor);
}

static trek_module *wrong_teacher(trek_device device, void *arg)
{
    return *(int *)arg == 0 ? NULL : trek_nn_linear(IN, CLASSES, device);
}

static void test_constants(void **state)
{
    run c = { .world = 3, .passes = 1, .loss = BY_TEACHER, .optimizer = training_momentum() };
    trek_graph *graph = training_set_up(&c, NULL);
    trek_scope scope = trek_scope_begin();
    int64_t count = trek_module_param_count(trek_graph_module(graph));
    trek_module *before = trek_graph_teacher(graph, "teacher");
    for (int r = 0; r < 3; r++) {
        trek_graph *replica = trek_graph_replica(graph, r);
        trek_var *weights = trek_graph_constant(replica, "weights"),
            *weight = trek_module_find(trek_graph_teacher(replica, "teacher"), "weight");
        assert_true(trek_device_equal(trek_var_device(weights), test_device_of_rank(r)));
        assert_true(trek_device_equal(trek_var_device(weight), test_device_of_rank(r)));
        assert_false(trek_var_requires_grad(weight));
        assert_true(r == 0 || trek_graph_teacher(replica, "teacher") != before);
    }
    /* mistakes: the old ones stay */
    static const trek_status expected[] = { TREK_ERR_CALLBACK, TREK_ERR_ARGUMENT, TREK_ERR_ARGUMENT };
    for (int way = 0; way < 3; way++) {
        assert_int_equal(trek_graph_set_teacher(graph, "teacher", training_teacher(trek_cpu(0), NULL),
                                                way < 2 ? wrong_teacher : NULL, &way), expected[way]);
        assert_non_null(strstr(trek_error(), "graph_set_teacher: \"teacher\""));
        trek_error_clear();
        assert_ptr_equal(trek_graph_teacher(graph, "teacher"), before);
        assert_non_null(trek_graph_teacher(trek_graph_replica(graph, 2), "teacher"));
    }
    assert_null(trek_graph_constant(graph, "teacher"));
    trek_error_clear();
    assert_null(trek_graph_teacher(graph, "nobody"));
    trek_error_clear();
    FAILS(trek_graph_set_constant(NULL, "x", NULL), TREK_ERR_ARGUMENT, "");
    FAILS(trek_graph_set_teacher(graph, NULL, training_teacher(trek_cpu(0), NULL), NULL, NULL), TREK_ERR_ARGUMENT, "");
    /* a teacher that changes, modes that do not reach it, and an end */
    trek_var *weight = trek_module_find(before, "weight");
    trek_tensor *other = trek_tensor_full(trek_dims(CLASSES, IN), 3, TREK_F64, test_device());
    assert_int_equal(trek_tensor_copy_from(trek_var_data(weight), other), TREK_OK);
    trek_tensor_release(other);
    assert_int_equal(trek_graph_parameters_changed(graph), TREK_OK);
    trek_graph_train(graph, true);
    trek_graph_thaw(graph, NULL);
    for (int r = 0; r < 3; r++) {
        trek_module *teacher = trek_graph_teacher(trek_graph_replica(graph, r), "teacher");
        assert_false(trek_module_is_training(teacher) || trek_var_requires_grad(trek_module_find(teacher, "weight")));
        assert_true(trek_var_item(trek_narrow(trek_reshape(trek_module_find(teacher, "weight"), trek_dims(-1)), 0, 4, 1)) == 3);
    }
    assert_int_equal(trek_module_param_count(trek_graph_module(graph)), count);
    assert_int_equal(trek_graph_set_teacher(graph, "teacher", NULL, NULL, NULL), TREK_OK);
    for (int r = 0; r < 3; r++) {
        assert_null(trek_graph_teacher(trek_graph_replica(graph, r), "teacher"));
        trek_error_clear();
        assert_non_null(trek_graph_constant(trek_graph_replica(graph, r), "weights"));
    }
    trek_scope_end(scope);
    trek_graph_free(&graph);
}

/* Ranks that are slowed down get less, and the result stays that of one device. */
static void test_uneven_shares(void **state)
{
    run c = { .world = 3, .passes = 1, .batch = 5, .loss = BY_LABELS, .optimizer = training_momentum(), .slowdown = "1,30s,3s",
              .balance = 1 };
    compare(&c);
}

static void test_replay(void **state)
{
    for (int windows = brief(); windows < 2; windows++) {
        run c = { .world = 3, .passes = 1, .batch = 2, .loss = BY_LABELS, .windows = windows, .optimizer = training_adam(),
                  .slowdown = "1,40s,3s",
                  .balance = 1 };
        training_run(&c, &many);
        trek_plan *plan = many.made;
        assert_true(trek_plan_size(plan) > 1);
        c.plan = plan;
        c.slowdown = "25s,1,9s";
        training_run(&c, &again);
        assert_int_equal(many.steps, again.steps);
        assert_memory_equal(many.params, again.params, sizeof many.params);
        assert_memory_equal(many.losses, again.losses, sizeof many.losses);
        assert_memory_equal(many.windows, again.windows, sizeof many.windows);
        trek_plan_free(&again.made);
        trek_plan_free(&plan);
    }
}

static void test_without_training(void **state)
{
    trek_loader *loader = trek_loader_new(training_dataset(), &(trek_loader_opts){ .batch_size = 9 });
    run c = { .world = 3, .passes = 1, .optimizer = training_momentum() };
    trek_graph *graph = training_set_up(&c, loader);
    loss_kind kind = BY_LABELS;
    trek_graph_set_loss(graph, training_loss, &kind);
    result before = { 0 };
    training_params(graph, &before);
    trek_graph_train(graph, false);
    double sum = 0, weight = 0;
    trek_graph_start(graph, 0);
    for (trek_batch *batch; (batch = trek_graph_next(graph));) {
        double counted = 0;
        for (int64_t k = 0; k < trek_batch_size(batch); k++) {
            int64_t i = trek_batch_indices(batch)[k];
            counted += !(i % 3 == 1 || i % 7 == 0);
        }
        sum += trek_var_item(trek_graph_train_batch(graph, batch)) * counted;
        weight += counted;
    }
    trek_graph_train(graph, true);
    trek_graph_start(graph, 0);
    trek_batch *batch = trek_graph_next(graph);
    trek_no_grad_begin();
    assert_non_null(trek_graph_train_batch(graph, batch));
    trek_no_grad_end();
    assert_int_equal(trek_graph_step(graph), TREK_OK);
    result after = { 0 };
    training_params(graph, &after);
    assert_memory_equal(before.params, after.params, sizeof before.params);
    assert_true(sum / weight > 0.5 && sum / weight < 4);
    trek_graph_free(&graph);
    trek_loader_free(&loader);
}

static void test_scaled_losses(void **state)
{
    for (int w = 0; w < 3; w++) {
        compare(&(run){ .world = worlds[w], .passes = 1 + w % 2, .batch = 8, .loss = BY_LABELS, .scaled = true,
                        .separate = w == 2, .optimizer = training_momentum() });
        compare(&(run){ .world = worlds[w], .passes = 1, .batch = 2, .loss = BY_ROWS, .scaled = true, .windows = w > 0,
                        .optimizer = training_momentum() });
    }
}

static void test_two_graphs(void **state)
{
    for (int w = 0; w < 4; w++) {
        run c = { .world = worlds[w], .passes = 1, .batch = 7, .optimizer = training_adam(), .separate = w == 2 };
        training_pair(&c, w == 0 ? &one : &many);
        if (w > 0)
            training_compare(&c, &many, &one);
    }
}

/* Where a step's time goes, who waited, and what was decided. */
static void test_timeline(void **state)
{
    static const char *const names[] = { "forward", "backward", "wait for ranks", "sync", "reduce", "optimizer", "anchor" };
    char path[] = "/tmp/trek-test-feed-XXXXXX", *text = calloc(1, 1 << 20);
    run c = { .world = 2, .passes = 1, .batch = 2, .loss = BY_ROWS, .windows = true, .optimizer = training_momentum(),
              .slowdown = "1,20s" };
    trek_timeline *timeline = trek_timeline_new(NULL);
    assert_int_equal(trek_timeline_attach(timeline), TREK_OK);
    training_run(&c, &many);
    trek_plan_free(&many.made);
    int file = mkstemp(path);
    assert_int_equal(trek_timeline_save(timeline, path), TREK_OK);
    close(file);
    FILE *read_back = fopen(path, "r");
    assert_true(fread(text, 1, (1 << 20) - 1, read_back) > 0);
    fclose(read_back);
    unlink(path);
    size_t count = sizeof names / sizeof *names - !test_on_cpu();
        /* a device's time is not that of the sleeping host: no decision need come */
    for (size_t k = 0; k < count; k++) {
        char quoted[40];
        snprintf(quoted, sizeof quoted, "\"%s\"", names[k]);
        if (!strstr(text, quoted))
            fail_msg("the timeline has no %s", quoted);
    }
    free(text);
    trek_timeline_free(&timeline);
}

/* forward_batch is a forward by the names of fields, with a loss and without; train_batch needs one. */
static void test_forward_only(void **state)
{
    trek_loader *loader = trek_loader_new(training_dataset(), &(trek_loader_opts){ .batch_size = 10 });
    run c = { .world = 2, .passes = 1, .optimizer = training_momentum() };
    trek_graph *graph = training_set_up(&c, loader);
    trek_graph_train(graph, false);
    trek_graph_start(graph, 0);
    trek_batch *batch = trek_graph_next(graph);
    loss_kind kind = BY_ROWS;
    for (int k = 0; k < 2; k++) {
        trek_graph_set_loss(graph, k ? training_loss : NULL, &kind);
        trek_var *y = trek_graph_forward_batch(graph, batch), *same = trek_graph_forward(graph, trek_batch_get(batch, "x"));
        assert_true(test_same_bits(trek_var_data(y), trek_var_data(same)));
        assert_int_equal(trek_var_size(y, 0), 10);
    }
    trek_graph_set_loss(graph, NULL, NULL);
    REFUSED(trek_graph_train_batch(graph, batch), TREK_ERR_STATE, "graph_train_batch: no loss is registered");
    trek_graph_free(&graph);
    trek_loader_free(&loader);
}

/* A second forward of the rank's own, and what both say. */
static trek_var *twofold_loss(trek_graph *graph, trek_var *output, const trek_batch *batch, void *arg)
{
    trek_var *again = trek_graph_forward(graph, trek_batch_get(batch, "x"));
    trek_var *apart = trek_mean(trek_square(trek_sub(output, again)), trek_dims_all(), false);
    return trek_add(trek_mul_scalar(apart, 0.5), training_loss(graph, output, batch, arg));
}

static void test_forward_in_the_loss(void **state)
{
    for (int world = 1; world <= 3; world += 2) {
        run c = { .world = world, .passes = 1, .optimizer = training_momentum() };
        trek_loader *loader = trek_loader_new(training_dataset(), &(trek_loader_opts){ .batch_size = 10 });
        trek_graph *graph = training_set_up(&c, loader);
        loss_kind kind = BY_ROWS;
        trek_graph_set_loss(graph, twofold_loss, &kind);
        trek_graph_start(graph, 0);
        for (trek_batch *batch; (batch = trek_graph_next(graph)); trek_graph_step(graph))
            if (!trek_graph_train_batch(graph, batch))
                fail_msg("%s", trek_error());
        training_params(graph, world == 1 ? &one : &many);
        trek_graph_free(&graph);
        trek_loader_free(&loader);
    }
    for (int k = 0; k < one.n; k++)
        assert_true(fabs(many.params[k] - one.params[k]) <= 1e-10 * (1 + fabs(one.params[k])));
}

static trek_var *failing_loss(trek_graph *graph, trek_var *output, const trek_batch *batch, void *arg)
{
    for (int64_t k = 0; k < trek_batch_size(batch); k++)
        if (trek_batch_indices(batch)[k] == 7)
            return NULL;
    return trek_mean(output, trek_dims_all(), false);
}

static trek_var *vector_loss(trek_graph *graph, trek_var *output, const trek_batch *batch, void *arg)
{
    return output;
}

static void test_mistakes(void **state)
{
    trek_loader *loader = trek_loader_new(training_dataset(), &(trek_loader_opts){ .batch_size = 10 });
    run c = { .world = 2, .passes = 1, .optimizer = training_momentum(), .windows = true };
    trek_graph *graph = training_set_up(&c, loader);
    FAILS(trek_graph_set_loader(graph, loader, "y"), TREK_ERR_ARGUMENT, "target");
    trek_graph_set_loss(graph, failing_loss, NULL);
    trek_graph_start(graph, 0);
    trek_batch *batch = trek_graph_next(graph);
    REFUSED(trek_batch_get(batch, "x"), TREK_ERR_UNSUPPORTED, "window");
    REFUSED(trek_graph_forward_batch(graph, batch), TREK_ERR_UNSUPPORTED, "graph_forward_batch: batch: a window");
    assert_null(trek_graph_train_batch(graph, batch));
    FAILS(trek_graph_step(graph), TREK_ERR_CALLBACK, "rank 0");
    trek_graph_set_loss(graph, vector_loss, NULL);
    REFUSED(trek_graph_train_batch(graph, batch), TREK_ERR_SHAPE, "scalar");
    trek_graph *other = training_build(test_device(), NULL);
    REFUSED(trek_graph_next(other), TREK_ERR_STATE, "loader");
    loss_kind kind = BY_ROWS; /* and all goes on */
    trek_graph_zero_grad(graph);
    trek_graph_set_loss(graph, training_loss, &kind);
    trek_graph_start(graph, 0);
    assert_non_null(trek_graph_train_batch(graph, trek_graph_next(graph)));
    assert_int_equal(trek_graph_step(graph), TREK_OK);
    trek_graph_free(&other);
    trek_graph_free(&graph);
    trek_loader_free(&loader);
}

/* --- autocast --- */

static atomic_int low_parts, wide_parts;

static trek_graph *build_low(trek_device device, void *arg)
{
    trek_flow *flow = trek_flow_from(trek_nn_linear(4, 3, device));
    trek_flow_tag(flow, "y");
    return trek_flow_build(flow);
}

static trek_var *note_dtype(trek_graph *graph, trek_var *output, const trek_batch *batch, void *arg)
{
    bool low = trek_var_dtype(trek_graph_tagged(graph, "y")) == TREK_BF16;
    atomic_fetch_add(low ? &low_parts : &wide_parts, 1);
    return trek_mean(output, trek_dims_all(), false);
}

/* It reaches all ranks, whether it is set before or after they were made, and ends on all. */
static void autocast_is_that_of_rank_0(void **state)
{
    trek_tensor *x = test_tensor(1, trek_dims(24, 4), 1);
    trek_tensor *on_cpu = trek_tensor_to(x, trek_cpu(0));
    const char *names[] = { "x" };
    trek_loader *loader = trek_loader_new(trek_dataset_tensors(names, &on_cpu, 1), &(trek_loader_opts){ .batch_size = 6,
                                                                                                    .device = test_device() });
    trek_graph *graph = build_low(test_device(), NULL);
    trek_trainer_opts opts = { .build_replica = build_low, .devices = test_devices(), .ranks = 3, .max_anchor = TREK_OFF,
                               .optimizer = training_momentum(), .amp = { .dtype = TREK_BF16 } };
    trek_graph_set_loader(graph, loader, "x");
    trek_graph_set_loss(graph, note_dtype, NULL);
    assert_int_equal(trek_trainer_setup(graph, &opts), TREK_OK);
    trek_graph_start(graph, 0);
    for (int step = 0; step < 3; step++) {
        atomic_store(&low_parts, 0);
        atomic_store(&wide_parts, 0);
        trek_graph_set_amp(graph, &(trek_amp_opts){ .dtype = step == 1 ? TREK_F32 : TREK_BF16, .scaling = TREK_OFF });
        assert_non_null(trek_graph_train_batch(graph, trek_graph_next(graph)));
        assert_int_equal(trek_graph_step(graph), TREK_OK);
        assert_int_equal(atomic_load(&low_parts), step == 1 ? 0 : 3);
        assert_int_equal(atomic_load(&wide_parts), step == 1 ? 3 : 0);
    }
    trek_graph_free(&graph);
    trek_loader_free(&loader);
    trek_tensor_release(on_cpu);
    trek_tensor_release(x);
}

/* CPUs beside GPUs, by every way of a step. */
static void test_mixed_devices(void **state)
{
    if (test_device().type == TREK_CPU)
        skip();
    const trek_device pair[] = { trek_cpu(0), trek_cuda(0) }, three[] = { trek_cuda(0), trek_cpu(0), trek_cpu(1) };
    for (int k = 0; k < 2; k++)
        for (int windows = 0; windows < 2; windows++)
            for (int loss = 0; loss <= BY_TEACHER; loss++) {
                if (loss == N_LOSSES)
                    continue;
                run c = { .world = k ? 3 : 2, .devices = k ? three : pair, .passes = 1 + (loss == k),
                          .accumulate = loss == 1 ? 2 : 0,
                          .batch = windows ? 2 : 7, .loss = loss, .late = windows,
                          .windows = windows, .clip = loss == 2, .optimizer = loss == 0 ? training_adam() : training_momentum() };
                compare(&c);
                c.gathered = !windows;
                if (c.gathered)
                    compare(&c);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_batches), cmocka_unit_test(test_small_batches), cmocka_unit_test(test_windows),
        cmocka_unit_test(test_loader_taken_away), cmocka_unit_test(gradients_put_aside), cmocka_unit_test(test_accumulate),
        cmocka_unit_test(failed_passes_draw_nothing),
        cmocka_unit_test(test_teacher), cmocka_unit_test(test_foreign_values), cmocka_unit_test(test_constants),
        cmocka_unit_test(test_uneven_shares), cmocka_unit_test(test_replay), cmocka_unit_test(test_without_training),
        cmocka_unit_test(test_scaled_losses), cmocka_unit_test(test_two_graphs), cmocka_unit_test(test_timeline),
        cmocka_unit_test(test_forward_only), cmocka_unit_test(test_forward_in_the_loss), cmocka_unit_test(test_mistakes),
        cmocka_unit_test(test_mixed_devices), cmocka_unit_test(autocast_is_that_of_rank_0),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
