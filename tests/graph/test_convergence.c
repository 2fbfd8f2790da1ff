/* SPDX-License-Identifier: Apache-2.0 */
/* LeNet learns handwritten digits: at least 97 % of the test images within ten
 * epochs, on one rank and on two. MNIST where its files are (TREK_DATA), else
 * drawn digits. TREK_LONG=1: five seeds. TREK_TEST_SHORT=1: a few steps, for
 * slow instrumented builds, that must lower the loss. */
#include "tests/support/lenet.h"
#include "tests/support/support.h"
#include "tests/support/unit.h"
#include "trek.h"

static trek_graph *build_lenet(trek_device device, void *arg) { return trek_flow_build(lenet(NULL, device)); }

/* 8000 images to learn from, 2000 others to be tested on. */
static void open_data(trek_dataset **train, trek_dataset **test)
{
    char images[4096];
    const char *found = test_data_path("mnist/t10k-images-idx3-ubyte.gz");
    if (!found) {
        *train = trek_dataset_digits(8000, 1);
        *test = trek_dataset_digits(2000, 2);
        return;
    }
    snprintf(images, sizeof images, "%s", found);
    const char *labels = test_data_path("mnist/t10k-labels-idx1-ubyte.gz");
    assert_non_null(labels);
    trek_dataset *whole = trek_dataset_idx(images, labels);
    assert_non_null(whole);
    *test = trek_dataset_subset(trek_dataset_retain(whole), 8000, 2000);
    *train = trek_dataset_subset(whole, 0, 8000);
}

/* A field of the batch where the model is. */
static trek_var *field(trek_batch *batch, const char *name)
{
    return trek_to(trek_batch_get(batch, name), test_device());
}

static double evaluate(trek_graph *model, trek_loader *test)
{
    double right = 0;
    trek_graph_train(model, false);
    trek_no_grad_begin();
    trek_loader_start(test, 0);
    for (trek_batch *batch; (batch = trek_loader_next(test));) {
        trek_var *logits = trek_graph_forward(model, field(batch, "image"));
        right += trek_var_item(trek_accuracy(logits, field(batch, "label"))) * (double)trek_batch_size(batch);
    }
    trek_no_grad_end();
    trek_graph_train(model, true);
    return right / 2000;
}

/* One epoch, or `most` batches of it; the mean loss of the last ten. */
static double train_epoch(trek_graph *model, trek_loader *train, int epoch, int most)
{
    double losses[10] = { 0 };
    int n = 0;
    trek_loader_start(train, epoch);
    for (trek_batch *batch; n < most && (batch = trek_loader_next(train)); n++) {
        trek_var *logits = trek_graph_forward(model, field(batch, "image"));
        trek_var *loss = trek_cross_entropy(logits, field(batch, "label"));
        trek_graph_backward(model, loss);
        trek_graph_step(model);
        losses[n % 10] = trek_var_item(loss);
    }
    double sum = 0;
    for (int k = 0; k < 10; k++)
        sum += losses[k] / 10;
    return sum;
}

static void learn(int ranks, uint64_t seed)
{
    bool quick = getenv("TREK_TEST_SHORT") != NULL;
    trek_dataset *train_set, *test_set;
    trek_seed(seed);
    open_data(&train_set, &test_set);
    trek_graph *model = build_lenet(test_device(), NULL);
    trek_device devices[] = { test_device_of_rank(0), test_device_of_rank(1) };
    trek_loader *train = trek_loader_new(train_set, &(trek_loader_opts){ .batch_size = 64, .shuffle = true, .seed = seed });
    trek_loader *test = trek_loader_new(test_set, &(trek_loader_opts){ .batch_size = 250 });
    trek_trainer_opts opts = { .build_replica = build_lenet, .devices = devices, .ranks = ranks,
                               .optimizer = trek_adam(&(trek_adam_opts){ .lr = 2e-3 }) };
    if (trek_trainer_setup(model, &opts) != TREK_OK)
        fail_msg("%d ranks: %s", ranks, trek_error());
    assert_int_equal(trek_graph_world_size(model), ranks);
    double accuracy = 0, loss = 0;
    int epoch = 0;
    if (quick)
        loss = train_epoch(model, train, 0, 25);
    for (; !quick && epoch < 10 && accuracy < 0.97; epoch++) {
        loss = train_epoch(model, train, epoch, 1000);
        accuracy = evaluate(model, test);
    }
    if (trek_error_status() != TREK_OK)
        fail_msg("%d ranks, seed %d: %s", ranks, (int)seed, trek_error());
    printf("%d ranks, seed %d: accuracy %.4f after %d epochs, loss %.4f\n", ranks, (int)seed, accuracy, epoch, loss);
    if (quick ? !(loss < 2.15) : !(accuracy >= 0.97))
        fail_msg("%d ranks, seed %d: accuracy %g, loss %g", ranks, (int)seed, accuracy, loss);
    trek_loader_free(&train);
    trek_loader_free(&test);
    trek_graph_free(&model);
}

static void on_ranks(int ranks)
{
    int seeds = getenv("TREK_LONG") ? 5 : 1;
    for (int seed = 1; seed <= seeds; seed++)
        learn(ranks, (uint64_t)seed);
}

static void lenet_on_one_rank(void **state)
{
    on_ranks(1);
}

static void lenet_on_two_ranks(void **state)
{
    on_ranks(2);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(lenet_on_one_rank), cmocka_unit_test(lenet_on_two_ranks) };
    return cmocka_run_group_tests_name("convergence", tests, NULL, NULL);
}
