/* SPDX-License-Identifier: Apache-2.0 */
/* What a watched run says of the devices that it is on: on the CPU, and on the fake GPUs, of which a fake management library
 * tells (tests/fake_cuda/fake_nvml.cc). What is not told is not there, from the record to what is made of it. */
#include <unistd.h>

#include "autograd/ops.h"
#include "graph/graph.h"
#include "graph/settings.h"
#include "monitor/export.h"
#include "monitor/monitor.h"
#include "tensor/copies.h"
#include "tensor/devices.h"
#include "tensor/print.h"
#include "tests/distributed/run/line.h"
#include "tests/monitor/watching.h"

static char run[128];

static int begin_run(void **state)
{
    int status = begin(state);
    snprintf(run, sizeof run, "%s/first", folder);
    return status;
}

static bool on_gpus(void) { return test_device().type == TREK_CUDA; }

/* A step on that device, watched; what was written. */
static trek_run_reader *train_on(trek_device device)
{
    trek_scope scope = trek_scope_begin();
    trek_graph *graph = line_build(device, NULL);
    assert_int_equal(trek_graph_set_optimizer(graph, trek_sgd(&(trek_sgd_opts){ .lr = 0.01 })), TREK_OK);
    trek_monitor *m = trek_monitor_new(&(trek_monitor_opts){ .folder = folder, .name = "first" });
    assert_int_equal(trek_monitor_attach(m, graph), TREK_OK);
    trek_tensor *x = trek_tensor_to(test_values((double[]){ 1, 2, 3 }, trek_dims(1, 3), TREK_F64), device);
    trek_var *y = trek_graph_forward(graph, trek_var_from(x));
    assert_int_equal(trek_graph_backward(graph, trek_mean(trek_square(y), trek_dims_all(), false)), TREK_OK);
    assert_int_equal(trek_graph_step(graph), TREK_OK);
    trek_monitor_free(&m); /* which looks once more */
    trek_graph_free(&graph);
    trek_scope_end(scope);
    return read_run("first");
}

static void test_a_cpu_has_its_name(void **state)
{
    char line[256], model[256] = "CPU", cores[32];
    FILE *file = fopen("/proc/cpuinfo", "r");
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "model name : %255[^\n]", model) == 1)
            break;
    if (file)
        fclose(file);
    trek_run_reader *r = train_on(trek_cpu(0));
    const trek_run_state *s = trek_run_reader_state(r);
    assert_string_equal(s->ranks[0].device, "cpu:0");
    assert_int_equal(strncmp(s->ranks[0].name, model, strlen(model)), 0);
    snprintf(cores, sizeof cores, ", %d core%s", trek_device_count(TREK_CPU), trek_device_count(TREK_CPU) == 1 ? "" : "s");
    assert_string_equal(s->ranks[0].name + strlen(model), cores);
    assert_int_equal(s->processes[0].n_devices, 0);
    trek_run_reader_free(&r);
}

/* --- on fake GPUs ------------------------------------------------------------------------------- */

/* The second of two: the library numbers them the other way round. */
static trek_run_reader *train_on_gpu(const char *mode)
{
    if (!getenv("TREK_TEST_NO_NVML"))
        setenv("TREK_FAKE_NVML", mode, 1);
    trek_run_reader *r = train_on(trek_cuda(1));
    const trek_run_state *s = trek_run_reader_state(r);
    assert_string_equal(s->ranks[0].device, "cuda:1");
    assert_string_equal(s->ranks[0].name, "Fake GPU");
    assert_int_equal(s->processes[0].n_devices, 1);
    assert_string_equal(s->processes[0].devices[0].device, "cuda:1");
    assert_string_equal(s->processes[0].trek_bytes[1].name, "cuda:1");
    assert_true(s->processes[0].trek_bytes[1].value >= 0);
    return r;
}

static void expect_text(bool there, const char *text, const char *part)
{
    if (there)
        assert_non_null(strstr(text, part));
    else
        assert_null(strstr(text, part));
}

static void expect_metrics(bool told)
{
    char *text = trek_export_open_metrics(run);
    expect_text(true, text,
                "trek_rank_info{run=\"first\",rank=\"0\",process=\"0\",device=\"cuda:1\",device_name=\"Fake GPU\"} 1\n");
    expect_text(told, text, "trek_device_memory_bytes{run=\"first\",process=\"0\",device=\"cuda:1\"} 2147483648\n");
    expect_text(told, text, "trek_device_temperature_celsius{run=\"first\",process=\"0\",device=\"cuda:1\"} 61\n");
    expect_text(told, text, "trek_device_power_watts{run=\"first\",process=\"0\",device=\"cuda:1\"} 301.5\n");
    expect_text(told, text, "trek_device_utilization_percent{run=\"first\",process=\"0\",device=\"cuda:1\"} 91\n");
    expect_text(told, text, "trek_device_throttled{run=\"first\",process=\"0\",device=\"cuda:1\",reason=\"heat\"} 1\n");
    expect_text(told, text, "trek_device_throttled{");
    trek_string_free(&text);
}

/* The column that the title stands for, in the row that has it. */
static double in_table(const char *title)
{
    char path[160], line[4096], quoted[64];
    double value = (double)NAN;
    snprintf(path, sizeof path, "%s/table.csv", folder);
    assert_int_equal(trek_export_csv(run, path), TREK_OK);
    FILE *file = fopen(path, "r");
    assert_true(file && fgets(line, sizeof line, file));
    snprintf(quoted, sizeof quoted, ",\"%s\"", title);
    const char *at = strstr(line, quoted);
    int before = 1;
    for (const char *c = line; at && c < at; c++)
        before += *c == ',';
    while (at && isnan(value) && fgets(line, sizeof line, file)) {
        const char *field = line;
        for (int k = 0; k < before && field; k++)
            field = strchr(field, ',') ? strchr(field, ',') + 1 : NULL;
        if (field && *field != ',' && *field != '\r')
            value = atof(field);
    }
    fclose(file);
    return value;
}

/* Whether TensorBoard's file has a curve of the name that ends with this number, a float behind it. */
static bool in_events(const char *tag, float value)
{
    char path[160], bytes[65536], wanted[80];
    snprintf(path, sizeof path, "%s/events.out.tfevents.1", folder);
    assert_int_equal(trek_export_tensorboard(run, path), TREK_OK);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    size_t n = fread(bytes, 1, sizeof bytes, file), length = strlen(tag);
    fclose(file);
    memcpy(wanted, tag, length);
    wanted[length] = 0x15; /* Summary.Value.simple_value, a float of four bytes */
    memcpy(wanted + length + 1, &value, sizeof value);
    return memmem(bytes, n, wanted, length + 1 + sizeof value) != NULL;
}

static void test_a_gpu_says_how_it_is(void **state)
{
    if (!on_gpus())
        skip();
    trek_run_reader *r = train_on_gpu("");
    const trek_run_device *d = &trek_run_reader_state(r)->processes[0].devices[0];
    if (getenv("TREK_TEST_NO_NVML")) { /* CUDA alone tells how much memory there is */
        assert_true(isnan(d->memory_bytes) && d->memory_total_bytes == (double)(1 << 30) && isnan(d->temperature_c));
        assert_true(isnan(d->power_w) && isnan(d->utilization_percent) && !d->throttled);
        expect_metrics(false);
        assert_true(isnan(in_table("system/cuda:1/power_w")));
    } else {
        assert_true(d->memory_bytes == 2.0 * (1 << 30) && d->memory_total_bytes == 80.0 * (1 << 30) && d->temperature_c == 61);
        assert_true(d->power_w == 301.5 && d->utilization_percent == 91);
        assert_string_equal(d->throttled, "heat");
        expect_metrics(true);
        assert_true(in_table("system/cuda:1/power_w") == 301.5 && in_table("system/cuda:1/throttled") == 1);
        assert_true(in_events("system/cuda:1/power_w", 301.5f) && in_events("system/cuda:1/throttled", 1));
    }
    trek_run_reader_free(&r);
}

static void test_what_a_gpu_may_not_say_is_left_out(void **state)
{
    static const char *const modes[] = { "mig", "denied", "bare" };
    if (!on_gpus() || getenv("TREK_TEST_NO_NVML"))
        skip();
    for (int k = 0; k < 3; k++) {
        trek_run_reader *r = train_on_gpu(modes[k]);
        const trek_run_device *d = &trek_run_reader_state(r)->processes[0].devices[0];
        bool some = k == 2;
        assert_true(d->memory_bytes == 2.0 * (1 << 30));
        assert_true(isnan(d->temperature_c) == !some && isnan(d->power_w) == !some && isnan(d->utilization_percent) == !some);
        assert_null(d->throttled);
        trek_run_reader_free(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_cpu_has_its_name, begin_run, end),
        cmocka_unit_test_setup_teardown(test_a_gpu_says_how_it_is, begin_run, end),
        cmocka_unit_test_setup_teardown(test_what_a_gpu_may_not_say_is_left_out, begin_run, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
