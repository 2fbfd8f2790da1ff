/* SPDX-License-Identifier: Apache-2.0 */
/* TensorBoard's event files: checksums, base64, and that a live file says what the export of the finished run says. What they
 * mean is read by tensorboard itself (tests/checks/check_tensorboard.py). */
#include <dirent.h>
#include <unistd.h>

#include "graph/flow.h"
#include "monitor/viewer/event_file.h"
#include "monitor/export.h"
#include "monitor/monitor.h"
#include "nn/layers.h"
#include "tests/monitor/watching.h"
#include "tests/support/scoped.h"

/* RFC 3720, B.4. */
static void test_checksum(void **state)
{
    unsigned char bytes[32] = { 0 };
    assert_int_equal(trek_crc32c("123456789", 9), 0xe3069283u);
    assert_int_equal(trek_crc32c(bytes, 32), 0x8a9136aau);
    memset(bytes, 255, sizeof bytes);
    assert_int_equal(trek_crc32c(bytes, 32), 0x62a8ab43u);
    assert_int_equal(trek_crc32c("", 0), 0);
}

static void test_base64(void **state)
{
    static const char *const good[][2] = { { "", "" }, { "Zg==", "f" }, { "Zm8=", "fo" }, { "Zm9v", "foo" },
                                           { "Zm9vYmE=", "fooba" } };
    static const char *const bad[] = { "Z", "Zg", "Zg=", "Zg===", "Zm9v\n", "Zm9vYmE=Zg==", "Z m=" };
    for (size_t k = 0; k < sizeof good / sizeof *good; k++) {
        trek_text text = { 0 };
        assert_true(trek_base64_decode(&text, good[k][0]));
        assert_int_equal(text.length, strlen(good[k][1]));
        assert_memory_equal(text.length ? text.data : "", good[k][1], text.length);
        trek_text_clear(&text);
    }
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
        trek_text text = { 0 };
        assert_false(trek_base64_decode(&text, bad[k]));
        trek_text_clear(&text);
    }
}

/* --- live files ----------------------------------------------------------------------------------- */

static char *load(const char *path, size_t *size)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    char *bytes = malloc(1 << 20);
    *size = fread(bytes, 1, 1 << 20, file);
    fclose(file);
    return bytes;
}

static bool find_events(const char *run, char *path, size_t size)
{
    DIR *list = opendir(run);
    bool found = false;
    for (struct dirent *entry; list && (entry = readdir(list));)
        if (strstr(entry->d_name, "tfevents")) {
            found = true;
            snprintf(path, size, "%s/%s", run, entry->d_name);
        }
    closedir(list);
    return found;
}

static void record_all(trek_monitor *m)
{
    trek_module *layer = trek_nn_linear(3, 2, trek_cpu(0));
    for (int64_t step = 0; step < 50; step++)
        trek_monitor_scalars(m, step, (const char *[]){ "loss", "a \"b\"\n" }, (double[]){ 1.0 / (double)(step + 1), -1e300 }, 2);
    trek_monitor_histograms(m, 50, layer);
    trek_graph *graph = trek_flow_build(trek_flow_from(trek_nn_linear(3, 2, trek_cpu(0))));
    trek_monitor_graph(m, graph);
    trek_graph_free(&graph);
    trek_tensor *image = trek_tensor_ones(trek_dims(3, 4, 5), TREK_F32, trek_cpu(0));
    trek_monitor_image(m, "white", 50, image);
    trek_tensor_release(image);
    trek_monitor_text(m, "note", 51, "words");
    trek_monitor_event(m, "checkpoint", "of step 51");
    trek_monitor_log(m, TREK_LOG_LEVEL_WARNING, "careful");
    trek_module_free(&layer);
}

/* But for when each began. */
static void test_live(void **state)
{
    enum { FIRST = 12 + 9 + 2 + 15 + 4 };
    char run[128], path[512], exported[128];
    size_t live_size, size;
    trek_monitor *m = trek_monitor_new(&(trek_monitor_opts){ .folder = folder, .name = "r", .tensorboard = true });
    record_all(m);
    trek_monitor_free(&m);
    snprintf(run, sizeof run, "%s/r", folder);
    snprintf(exported, sizeof exported, "%s/events.out.tfevents.1", folder);
    assert_true(find_events(run, path, sizeof path));
    assert_int_equal(trek_export_tensorboard(run, exported), TREK_OK);
    char *live = load(path, &live_size), *whole = load(exported, &size);
    assert_true(size > 5000);
    assert_memory_equal(whole, "\x1a\0\0\0\0\0\0\0\x12\x9b\xd8\x2d", 12);
        /* 26 bytes, and TensorBoard's mask of their number's CRC */
    assert_int_equal(live_size, size);
    assert_memory_equal(live + FIRST, whole + FIRST, size - FIRST);
    free(live);
    free(whole);
}

static void test_none(void **state)
{
    char run[128], path[512];
    trek_monitor *m = trek_monitor_new(&(trek_monitor_opts){ .folder = folder, .name = "r" });
    record_all(m);
    trek_monitor_free(&m);
    snprintf(run, sizeof run, "%s/r", folder);
    assert_false(find_events(run, path, sizeof path));
    snprintf(path, sizeof path, "%s/none/events.out.tfevents.1", folder);
    FAILS(trek_export_tensorboard(run, path), TREK_ERR_IO, "none");
    snprintf(path, sizeof path, "%s/events.out.tfevents.1", folder);
    FAILS(trek_export_tensorboard("/nowhere", path), TREK_ERR_IO, "does not contain a watched run");
    assert_int_equal(access(path, F_OK), -1);
    FAILS(trek_export_tensorboard(NULL, path), TREK_ERR_ARGUMENT, "");
    FAILS(trek_export_tensorboard(run, NULL), TREK_ERR_ARGUMENT, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_checksum), cmocka_unit_test(test_base64),
                                        cmocka_unit_test_setup_teardown(test_live, begin, end),
                                        cmocka_unit_test_setup_teardown(test_none, begin, end) };
    return cmocka_run_group_tests_name("event_file", tests, NULL, NULL);
}
