/* SPDX-License-Identifier: Apache-2.0 */
/* Well-known models against PyTorch, from the same weights (make.py): loss, output and the gradient's norm of each parameter in
 * five steps of SGD with momentum. In f64 to 1e-9, in f32 to 1e-5, by each instruction set, with one thread and with two in
 * turns. TREK_TEST_STEPS: so many steps, in f32 alone, where kernels are emulated. */
#include "tests/support/support.h"
#include "tests/support/unit.h"
#include "tests/support/ways.h"
#include "tests/zoo/zoo.h"

enum { STEPS = 5 };

static int steps(void)
{
    const char *fewer = getenv("TREK_TEST_STEPS");
    int n = fewer ? atoi(fewer) : STEPS;
    return n > 0 && n < STEPS ? n : STEPS;
}

static const double rate = 0.02;

/* --- weights ------------------------------------------------------------------------------------ */

static uint32_t stream_of(const char *name)
{
    uint32_t h = 2166136261u;
    for (; *name; name++)
        h = (h ^ (unsigned char)*name) * 16777619u;
    return h;
}

static bool is_bias(const char *name)
{
    size_t size = strlen(name);
    return (size >= 4 && strcmp(name + size - 4, "bias") == 0) || strstr(name, "bias_");
}

static trek_status fill(const char *name, trek_var *param, void *arg)
{
    trek_shape shape = trek_var_shape(param);
    double fan = (double)trek_shape_numel(shape) / (double)shape.sizes[0];
    trek_scope scope = trek_scope_begin();
    trek_tensor *narrow = test_tensor(stream_of(name), shape, shape.ndim > 1 ? 1 / sqrt(fan) : 0.1);
    trek_var *values = trek_cast(trek_var_from(narrow), TREK_F64);
    if (shape.ndim == 1 && !is_bias(name))
        values = trek_add_scalar(values, 1);
    trek_status status = trek_tensor_copy_from(trek_var_data(param), trek_var_data(values));
    trek_scope_end(scope);
    return status;
}

/* --- what PyTorch has ------------------------------------------------------------------------------ */

typedef struct expectation {
    const zoo_model *model;
    FILE *file;               /* lines "model what", and a number for each step; "-": none */
    int step;
    double tolerance, total;  /* norm of the whole gradient */
    const char *player;
    int compared;
} expectation;

static FILE *open_expected(void)
{
    char path[4096];
    const char *root = getenv("TREK_TEST_ROOT");
    snprintf(path, sizeof path, "%s/tests/zoo/expected.txt", root ? root : ".");
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    return file;
}

/* The next line's number for the step that is of the model, and of what it is, if not NULL; false: there is no more. */
static bool next_number(expectation *e, const char *what, double *number)
{
    char line[512], model[32], name[256], numbers[STEPS][32];
    while (fgets(line, sizeof line, e->file))
        if (sscanf(line, "%31s %255s %31s %31s %31s %31s %31s", model, name, numbers[0], numbers[1], numbers[2], numbers[3],
                   numbers[4]) == 2 + STEPS &&
            strcmp(model, e->model->name) == 0 && (!what || strcmp(name, what) == 0) && strcmp(numbers[e->step], "-") != 0) {
            *number = strtod(numbers[e->step], NULL);
            return true;
        }
    return false;
}

static double number_of(expectation *e, const char *what)
{
    double number = NAN;
    rewind(e->file);
    if (!next_number(e, what, &number))
        fail_msg("%s, step %d: %s is not stored", e->model->name, e->step, what);
    return number;
}

static int count_numbers(expectation *e)
{
    int count = 0;
    rewind(e->file);
    for (double number; next_number(e, NULL, &number);)
        count++;
    return count;
}

/* allowed: for numbers that are sums of larger ones. */
static void close_to(const expectation *e, const char *what, double got, double wanted, double allowed)
{
    if (!(fabs(got - wanted) <= e->tolerance * (fabs(wanted) + allowed)))
        fail_msg("%s in %s, step %d: %s is %.12g, PyTorch's %.12g (off by %.2g of it)", e->model->name,
                 zoo_dtype == TREK_F64 ? "f64" : "f32", e->step, what, got, wanted, fabs(got - wanted) / fabs(wanted));
}

static double norm_of(trek_var *x)
{
    double *values = test_read(trek_var_data(x)), sum = 0;
    for (int64_t i = 0; i < trek_var_numel(x); i++)
        sum += values[i] * values[i];
    free(values);
    return sqrt(sum);
}

static trek_status add_norm(const char *name, trek_var *param, void *arg)
{
    expectation *e = arg;
    if (!e->player || strncmp(name, e->player, strlen(e->player)) == 0)
        e->total += pow(norm_of(trek_var_grad(param)), 2);
    return TREK_OK;
}

/* A gradient that is zero but for rounding (a key's bias) is compared with the whole one. */
static trek_status compare_gradient(const char *name, trek_var *param, void *arg)
{
    expectation *e = arg;
    if (e->player && strncmp(name, e->player, strlen(e->player)) != 0)
        return TREK_OK;
    close_to(e, name, norm_of(trek_var_grad(param)), number_of(e, name), 0.1 * e->total);
    e->compared++;
    return TREK_OK;
}

static double output_number(trek_var *output, double *size)
{
    trek_tensor *weights = test_tensor(3000, trek_var_shape(output), 1);
    double *w = test_read(weights), *y = test_read(trek_var_data(output)), sum = 0;
    *size = 0;
    for (int64_t i = 0; i < trek_var_numel(output); i++)
        sum += w[i] * y[i], *size += fabs(w[i] * y[i]);
    free(w);
    free(y);
    trek_tensor_release(weights);
    return sum;
}

/* --- a run ----------------------------------------------------------------------------------------------- */

typedef struct chosen {
    trek_params *params;
    const char *player;
} chosen;

static trek_status choose(const char *name, trek_var *param, void *arg)
{
    chosen *c = arg;
    return c->player && strncmp(name, c->player, strlen(c->player)) != 0 ? TREK_OK : trek_params_add(c->params, name, param);
}

static trek_optimizer *optimizer_of(trek_module *model, const char *player)
{
    chosen c = { .params = trek_params_new(), .player = player };
    trek_module_each_param(model, choose, &c);
    trek_optimizer *optimizer = trek_optimizer_new(trek_sgd(&(trek_sgd_opts){ .lr = rate, .momentum = 0.9 }), c.params);
    trek_params_free(&c.params);
    return optimizer;
}

static void make_step(expectation *e, trek_module *model, trek_optimizer **optimizers)
{
    double size;
    int turn = e->model->players[0] ? e->step % 2 : 0;
    trek_scope scope = trek_scope_begin();
    for (int k = 0; k < 2; k++)
        trek_optimizer_zero_grad(optimizers[k] ? optimizers[k] : optimizers[0]);
    trek_var *output = NULL, *y = e->model->loss(model, e->step, &output);
    if (!y || trek_backward(y) != TREK_OK)
        fail_msg("%s, step %d: %s", e->model->name, e->step, trek_error());
    close_to(e, "the loss", trek_var_item(y), number_of(e, "loss"), 0.1);
    double got = output_number(output, &size);
    close_to(e, "the output", got, number_of(e, "output"), size);
    e->player = e->model->players[turn];
    e->total = 0;
    e->compared = 0;
    trek_module_each_param(model, add_norm, e);
    e->total = sqrt(e->total);
    trek_module_each_param(model, compare_gradient, e);
    assert_int_equal(e->compared + 2, count_numbers(e));
    trek_scope_end(scope);
    assert_int_equal(trek_optimizer_step(optimizers[turn]), TREK_OK);
}

static void run(const zoo_model *model, trek_dtype dtype)
{
    zoo_dtype = dtype;
    zoo_device = test_device();
    expectation e = { .model = model, .file = open_expected(), .tolerance = dtype == TREK_F64 ? 1e-9 : 1e-5 };
    trek_module *m = model->build();
    if (!m)
        fail_msg("%s: %s", model->name, trek_error());
    assert_int_equal(trek_module_each_param(m, fill, NULL), TREK_OK);
    trek_optimizer *optimizers[2] = { optimizer_of(m, model->players[0]),
                                      model->players[1] ? optimizer_of(m, model->players[1]) : NULL };
    for (e.step = 0; e.step < steps(); e.step++)
        make_step(&e, m, optimizers);
    for (int k = 0; k < 2; k++)
        trek_optimizer_free(&optimizers[k]);
    trek_module_free(&m);
    fclose(e.file);
    assert_int_equal(trek_tape_size(), 0);
    assert_int_equal(trek_error_status(), TREK_OK);
}

static void test_model(void **state)
{
    bool emulated = steps() < STEPS;
    if (emulated && *state == &zoo_mobilenet_v2) /* the gradients of its many groups alone take a minute */
        skip();
    if (!emulated)
        run(*state, TREK_F64);
    for (int way = 0; way < ways(); way++) {
        if (!way_taken(way, TREK_F32, false, 0))
            continue;
        way_use(way);
        printf("%s\n", way_name(way)); /* of which one fails the last */
        run(*state, TREK_F32);
        way_use(-1);
    }
}

#define MODEL(kind) { #kind, test_model, NULL, NULL, (void *)&zoo_##kind }

int main(void)
{
    const struct CMUnitTest tests[] = { MODEL(resnet18), MODEL(mobilenet_v2), MODEL(unet), MODEL(gpt2), MODEL(bert), MODEL(t5),
                                        MODEL(lstm_lm), MODEL(vit), MODEL(vae), MODEL(dcgan) };
    return cmocka_run_group_tests_name("models", tests, NULL, NULL);
}
