/* SPDX-License-Identifier: Apache-2.0 */
/* monitor/run_reader: files as they grow, broken ones, curves that are long, and how a run ended. */
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "monitor/export.h"
#include "monitor/viewer/mlflow_name.h"
#include "monitor/viewer/run_reader.h"
#include "tensor/memory_internal.h"
#include "tensor/print.h"
#include "tensor/tensor.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"

static char folder[64], run[96];

static int begin(void **state)
{
    trek_error_clear();
    snprintf(folder, sizeof folder, "/tmp/trek-runs-XXXXXX");
    if (!mkdtemp(folder))
        return -1;
    snprintf(run, sizeof run, "%s/first", folder);
    return mkdir(run, 0700);
}

static int end(void **state)
{
    return test_remove(folder) != 0 || trek_error_status() != TREK_OK;
}

static void append(int process, const char *text)
{
    char path[128];
    snprintf(path, sizeof path, "%s/process-%d.jsonl", run, process);
    FILE *file = fopen(path, "a");
    assert_non_null(file);
    fputs(text, file);
    assert_int_equal(fclose(file), 0);
}

static trek_run_reader *reader_of(const trek_run_reader_opts *opts)
{
    trek_run_reader *r = trek_run_reader_new(run, opts);
    assert_non_null(r);
    return r;
}

static const trek_run_state *poll_all(trek_run_reader *r)
{
    assert_int_equal(trek_run_reader_catch_up(r), TREK_OK);
    return trek_run_reader_state(r);
}

/* A file that lies there as a link is another's: it is neither read nor counted. */
static void test_links_are_not_read(void **state)
{
    char path[128];
    trek_run_entry *runs;
    int n;
    append(1, "{\"kind\":\"scalars\",\"time\":1,\"step\":3,\"epoch\":0,\"values\":{\"hidden\":1}}\n");
    snprintf(path, sizeof path, "%s/other", folder);
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(path, sizeof path, "%s/other/process-0.jsonl", folder);
    assert_int_equal(symlink("../first/process-1.jsonl", path), 0);
    snprintf(path, sizeof path, "%s/other", folder);
    trek_run_reader *r = trek_run_reader_new(path, NULL);
    assert_int_equal(poll_all(r)->lines, 0);
    trek_run_reader_free(&r);
    assert_int_equal(trek_runs_list(folder, &runs, &n), TREK_OK);
    assert_int_equal(n, 1);
    assert_string_equal(runs[0].name, "first");
    trek_runs_free(&runs, n);
}

static void test_lines_count_when_they_are_whole(void **state)
{
    trek_run_reader *r = reader_of(NULL);
    assert_int_equal(poll_all(r)->status, TREK_RUN_UNKNOWN);
    append(0, "{\"kind\":\"scalars\",\"time\":1,\"step\":3,\"epoch\":0,\"values\":{\"loss\":0.25,\"a "
              "\\\"b\\\"\\u00e9\":\"NaN\"}}\n{\"kind\":\"sca");
    assert_int_equal(poll_all(r)->lines, 1);
    append(0, "lars\",\"time\":2,\"step\":4,\"epoch\":0,\"values\":{\"loss\":\"-Infinity\"}}");
    assert_int_equal(poll_all(r)->lines, 1);
    append(0, "\n");
    assert_int_equal(poll_all(r)->lines, 2);
    const trek_run_series *loss = trek_run_reader_series(r, "loss", false);
    assert_int_equal(loss->count, 2);
    assert_true(loss->points[0].value == 0.25 && loss->points[0].step == 3 && loss->points[1].value == -(double)INFINITY);
    assert_true(isnan(trek_run_reader_series(r, "a \"b\"\u00e9", false)->points[0].value));
    assert_null(trek_run_reader_series(r, "loss", true));
    assert_int_equal(trek_run_reader_state(r)->step, 4);
    trek_run_reader_free(&r);
    assert_null(r);
}

static void test_what_is_no_record_is_passed_over(void **state)
{
    append(
        2,
        "{\"kind\":\"scalars\",\"time\":1,\"values\":{\"x\":1}\n\n[1]\n{}\n{\"kind\":\"later\",\"deep\":[{\"a\":{}}]}\n\x01\xff\n"
        "{\"kind\":\"scalars\",\"values\":{\"x\":2},\"new\":[null]}\n{\"kind\":\"histogram\",\"edges\":[0],\"counts\":[1]}\n");
    trek_run_reader *r = reader_of(NULL);
    const trek_run_state *s = poll_all(r);
    assert_int_equal(s->lines, 7);
    assert_int_equal(s->bad_lines, 4);
    assert_int_equal(trek_run_reader_series(r, "x", false)->count, 1);
    assert_int_equal(s->n_histograms, 0);
    assert_int_equal(s->processes[0].process, 2);
    trek_run_reader_free(&r);
}

/* Every kept point is one that was written, the first and the last among them. */
static void test_long_curves_lose_points_and_not_their_ends(void **state)
{
    trek_run_reader *r = reader_of(&(trek_run_reader_opts){ .most_points = 20 });
    for (int k = 0; k < 1000; k++) {
        char line[160];
        snprintf(line, sizeof line, "{\"kind\":\"scalars\",\"time\":%d,\"step\":%d,\"values\":{\"x\":%d}}\n", k, k, 2 * k);
        assert_int_equal(trek_run_reader_feed(r, 0, line, strlen(line)), TREK_OK);
        const trek_run_series *x = trek_run_reader_series(r, "x", false);
        assert_true(x->count <= 20 && x->points[0].step == 0 && x->points[x->count - 1].step == k);
        for (int i = 0; i < x->count; i++)
            assert_true(x->points[i].value == 2 * (double)x->points[i].step && (!i || x->points[i].step > x->points[i - 1].step));
    }
    assert_int_equal(trek_run_reader_series(r, "x", false)->seen, 1000);
    assert_true(trek_run_reader_series(r, "x", false)->count > 8);
    trek_run_reader_free(&r);
}

static void say_run(int process, pid_t pid, const char *host)
{
    char line[600], own[256] = "";
    gethostname(own, sizeof own - 1);
    snprintf(
        line, sizeof line,
        "{\"kind\":\"run\",\"time\":%lld,\"version\":1,\"run\":\"first\",\"program\":\"p\",\"arguments\":[\"-x\"],\"host\":\"%"
        "s\","
        "\"pid\":%d,\"process\":%d,\"processes\":2,\"ranks\":[{\"rank\":%d,\"device\":\"cpu:0\",\"name\":\"n\"}],\"epochs\":5,"
        "\"started\":%lld.5,\"parameters\":12}\n",
        (long long)time(NULL), host ? host : own, (int)pid, process, process, (long long)time(NULL));
    append(process, line);
}

static void test_how_a_run_ended(void **state)
{
    pid_t child = fork();
    if (child == 0)
        _exit(0);
    trek_run_reader *r = reader_of(NULL);
    say_run(0, getpid(), NULL);
    say_run(1, child, NULL);
    const trek_run_state *s = poll_all(r);
    assert_int_equal(s->status, TREK_RUN_RUNNING);
    assert_int_equal(waitpid(child, NULL, 0), child);
    s = poll_all(r);
    assert_int_equal(s->processes[1].status, TREK_RUN_DIED);
    assert_int_equal(s->status, TREK_RUN_RUNNING); /* the other one goes on */
    append(0, "{\"kind\":\"end\",\"time\":1,\"status\":\"failed\",\"error\":\"rank 1 is gone\"}\n");
    s = poll_all(r);
    assert_int_equal(s->status, TREK_RUN_FAILED);
    assert_string_equal(s->error, "rank 1 is gone");
    say_run(0, getpid(), NULL); /* started again */
    assert_int_equal(poll_all(r)->status, TREK_RUN_RUNNING);
    append(0, "{\"kind\":\"end\",\"time\":1,\"status\":\"done\"}\n");
    s = poll_all(r);
    assert_int_equal(s->status, TREK_RUN_DONE);
    assert_null(s->error);
    assert_int_equal(s->n_ranks, 2);
    assert_string_equal(s->ranks[1].device, "cpu:0");
    assert_int_equal(s->epochs, 5);
    assert_string_equal(s->arguments[0], "-x");
    trek_run_reader_free(&r);
}

static void test_a_run_of_another_machine_is_silent(void **state)
{
    trek_run_reader *r = reader_of(NULL);
    say_run(0, 1, "elsewhere.example");
    assert_int_equal(poll_all(r)->status, TREK_RUN_RUNNING);
    trek_run_reader_free(&r);
    append(1, "{\"kind\":\"run\",\"time\":5,\"host\":\"elsewhere.example\",\"pid\":1,\"started\":5}\n");
    r = reader_of(NULL);
    assert_int_equal(poll_all(r)->processes[1].status, TREK_RUN_SILENT);
    assert_string_equal(trek_run_status_text(TREK_RUN_SILENT), "silent");
    trek_run_reader_free(&r);
}

static void test_messages_and_the_last_of_each(void **state)
{
    for (int k = 0; k < 5; k++) {
        char line[300];
        snprintf(
            line, sizeof line,
            "{\"kind\":\"log\",\"level\":\"info\",\"text\":\"%d\",\"rank\":1}\n"
            "{\"kind\":\"histogram\",\"name\":\"w\",\"of\":\"%s\",\"step\":%d,\"edges\":[0,1,2],\"counts\":[%d,1],\"min\":0.5}\n",
            k, k % 2 ? "gradient" : "parameter", k, k);
        append(0, line);
    }
    append(0, "{\"kind\":\"progress\",\"epoch\":1,\"epochs\":4,\"batch\":2,\"batches\":9,\"eta_s\":12.5}\n{\"kind\":\"graph\","
              "\"svg\":\"<svg/>\"}\n"
              "{\"kind\":\"ranks\",\"time\":7,\"ranks\":[{\"rank\":4,\"computing_s\":0.5,\"share\":0.25,\"state\":\"waiting\"}],"
              "\"anchor\":3,"
              "\"windows\":true,\"drift\":0.125}\n{\"kind\":\"system\",\"memory_bytes\":1e9,\"trek_bytes\":{\"cpu\":5},"
              "\"devices\":[{\"device\":\"cuda:0\",\"power_w\":90}]}\n{\"kind\":\"image\",\"name\":\"i\",\"width\":2,\"height\":"
              "3,\"png\":\"AA==\"}\n");
    trek_run_reader *r = reader_of(&(trek_run_reader_opts){ .most_notes = 3 });
    const trek_run_state *s = poll_all(r);
    assert_int_equal(s->n_notes, 3);
    assert_string_equal(s->notes[0].text, "2");
    assert_string_equal(s->notes[2].text, "4");
    assert_string_equal(s->notes[2].name, "info");
    assert_int_equal(s->n_histograms, 2);
    assert_true(s->histograms[0].counts[0] == 4 && s->histograms[1].counts[0] == 3 && isnan(s->histograms[0].max));
    assert_true(s->epoch == 1 && s->batches == 9 && s->eta_s == 12.5);
    assert_string_equal(s->graph->svg, "<svg/>");
    assert_true(s->ranks[0].rank == 4 && s->ranks[0].share == 0.25 && isnan(s->ranks[0].waiting_s) && s->ranks[0].time == 7);
    assert_true(s->anchor == 3 && s->windows && s->drift == 0.125);
    assert_true(s->processes[0].memory_bytes == 1e9 && s->processes[0].trek_bytes[0].value == 5);
    assert_true(s->processes[0].devices[0].power_w == 90 && isnan(s->processes[0].devices[0].temperature_c));
    assert_true(s->images[0].height == 3);
    trek_run_reader_free(&r);
}

static int told;
static trek_status tell(const trek_run_record *record, void *arg)
{
    told += record->n_values;
    return record->kind == TREK_RUN_END ? trek_fail(TREK_ERR_CALLBACK, "%s", (const char *)arg) : TREK_OK;
}

static void test_each_record_is_told(void **state)
{
    append(
        0,
        "{\"kind\":\"scalars\",\"values\":{\"x\":1,\"y\":2}}\n{\"kind\":\"end\"}\n{\"kind\":\"scalars\",\"values\":{\"x\":1}}\n");
    trek_run_reader *r = reader_of(&(trek_run_reader_opts){ .on_record = tell, .arg = "enough" });
    told = 0;
    assert_int_equal(trek_run_reader_poll(r, NULL), TREK_ERR_CALLBACK);
    assert_string_equal(trek_error(), "enough");
    assert_int_equal(told, 2);
    trek_error_clear();
    trek_run_reader_free(&r);
}

static void test_a_table_has_all_of_a_run(void **state)
{
    char path[128], text[400] = "";
    append(0, "{\"kind\":\"scalars\",\"step\":1,\"epoch\":0,\"values\":{\"loss\":0.5}}\n"
              "{\"kind\":\"scalars\",\"step\":2,\"epoch\":0,\"values\":{\"loss\":\"NaN\"}}\n"
              "{\"kind\":\"scalars\",\"step\":2,\"epoch\":0,\"at\":\"epoch\",\"values\":{\"loss\":0.25}}\n"
              "{\"kind\":\"scalars\",\"step\":3,\"epoch\":1,\"values\":{\"a \\\"b\\\",c\":7}}\n");
    snprintf(path, sizeof path, "%s/table.csv", folder);
    assert_int_equal(trek_export_csv(run, path), TREK_OK);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    assert_true(fread(text, 1, sizeof text - 1, file) > 0);
    fclose(file);
    assert_string_equal(text, "step,epoch,\"loss\",\"loss (epoch)\",\"a \"\"b\"\",c\"\r\n"
                              "1,0,0.5,,\r\n2,0,nan,0.25,\r\n3,1,,,7\r\n");
    FAILS(trek_export_csv("/nowhere/at/all", path), TREK_ERR_IO, "");
    FAILS(trek_export_csv(run, "/nowhere/at/all"), TREK_ERR_IO, "");
}

static void test_metrics_of_a_run(void **state)
{
    append(0, "{\"kind\":\"scalars\",\"step\":4,\"epoch\":0,\"values\":{\"a \\\"b\\\"\\n\":\"-Infinity\",\"loss\":0.5}}\n"
              "{\"kind\":\"ranks\",\"ranks\":[{\"rank\":2,\"share\":0.25,\"computing_s\":0.5}]}\n"
              "{\"kind\":\"system\",\"memory_bytes\":4096}\n");
    char *text = trek_export_open_metrics(run);
    assert_non_null(text);
    assert_non_null(
        strstr(text, "# TYPE trek_scalar gauge\ntrek_scalar{run=\"first\",name=\"a \\\"b\\\"\\n\",at=\"step\"} -Inf\n"));
    assert_non_null(strstr(text, "name=\"loss\",at=\"step\"} 0.5\n"));
    assert_non_null(strstr(text, "trek_step{run=\"first\"} 4\n"));
    assert_non_null(strstr(text, "trek_rank_share{run=\"first\",rank=\"2\"} 0.25\n"));
    assert_non_null(strstr(text, "trek_memory_bytes{run=\"first\",process=\"0\"} 4096\n"));
    assert_null(strstr(text, "trek_epoch{"));
    assert_string_equal(text + strlen(text) - 6, "# EOF\n");
    trek_string_free(&text);
    REFUSED(trek_export_open_metrics("/nowhere/at/all"), TREK_ERR_IO, "");
}

/* The first line of the only file of that name below the store's folder. */
static void expect_in_store(const char *file, const char *line)
{
    char command[256], text[200] = "";
    snprintf(command, sizeof command, "cat \"$(echo %s/store/[0-9]*/[0-9a-f]*)/%s\"", folder, file);
    FILE *out = popen(command, "r");
    assert_non_null(out);
    assert_non_null(fgets(text, sizeof text, out));
    assert_int_equal(pclose(out), 0);
    text[strcspn(text, "\n")] = '\0';
    assert_string_equal(text, line);
}

/* What MLflow itself reads: tests/checks/check_mlflow.py. */
static void test_a_store_of_mlflow_has_all_of_a_run(void **state)
{
    char store[128];
    append(0,
           "{\"kind\":\"run\",\"run\":\"first\",\"program\":\"p\",\"arguments\":[\"-x\",\"1\"],\"started\":1,\"host\":\"h\","
           "\"pid\":1}\n"
           "{\"kind\":\"scalars\",\"time\":2.5,\"step\":4,\"values\":{\"loss\":0.5,\"loss/a\":1,\"b=c\":2}}\n"
           "{\"kind\":\"system\",\"time\":3,\"memory_bytes\":7}\n{\"kind\":\"end\",\"status\":\"failed\",\"error\":\"why\"}\n");
    snprintf(store, sizeof store, "%s/store", folder);
    for (int k = 0; k < 2; k++) {
        assert_int_equal(trek_export_mlflow(run, store), TREK_OK);
        expect_in_store("metrics/loss", "2500 0.5 4");
        expect_in_store("metrics/loss_/a", "2500 1 4");
        expect_in_store("metrics/b_c", "2500 2 4");
        expect_in_store("metrics/system/memory_bytes", "3000 7 4");
        expect_in_store("params/arguments", "-x 1");
        expect_in_store("tags/trek.error", "why");
    }
    FAILS(trek_export_mlflow("/nowhere/at/all", store), TREK_ERR_IO, "");
    FAILS(trek_export_mlflow(run, "/proc/none"), TREK_ERR_IO, "");
    FAILS(trek_export_mlflow(run, NULL), TREK_ERR_ARGUMENT, "");
}

static void expect_name(const char *from, const char *name)
{
    char *made = trek_mlflow_name(from);
    assert_string_equal(made, name);
    trek_free(made);
}

static void test_names_that_mlflow_takes(void **state)
{
    char longest[260];
    memset(longest, 'x', sizeof longest);
    longest[259] = '\0';
    expect_name("a-b_c.d:e f/9", "a-b_c.d:e f/9");
    expect_name("\xc3\xb6\xe5\xad\x97", "\xc3\xb6\xe5\xad\x97");
    expect_name("\xe2\x88\x91\xf0\x9f\x98\x80=", "___");
    expect_name("\xff\xc3(\xf0\x9f", "_____");
    expect_name("", "_");
    expect_name("/./../x/", "_/_/_/x/_");
    char *cut = trek_mlflow_name(longest);
    assert_int_equal(strlen(cut), 200);
    trek_free(cut);
}

static void test_runs_of_a_folder(void **state)
{
    char other[96];
    trek_run_entry *runs;
    int n;
    append(0, "{}\n");
    append(1, "{}\n");
    snprintf(other, sizeof other, "%s/no-run", folder);
    assert_int_equal(mkdir(other, 0700), 0);
    assert_int_equal(trek_runs_list(folder, &runs, &n), TREK_OK);
    assert_int_equal(n, 1);
    assert_string_equal(runs[0].name, "first");
    assert_string_equal(runs[0].path, run);
    assert_int_equal(runs[0].files, 2);
    trek_runs_free(&runs, n);
    assert_int_equal(trek_runs_list(run, &runs, &n), TREK_OK); /* a run's own folder */
    assert_int_equal(n, 1);
    assert_string_equal(runs[0].name, "first");
    trek_runs_free(&runs, n);
    FAILS(trek_runs_list("/nowhere/at/all", &runs, &n), TREK_ERR_IO, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_links_are_not_read, begin, end),
        cmocka_unit_test_setup_teardown(test_lines_count_when_they_are_whole, begin, end),
        cmocka_unit_test_setup_teardown(test_what_is_no_record_is_passed_over, begin, end),
        cmocka_unit_test_setup_teardown(test_long_curves_lose_points_and_not_their_ends, begin, end),
        cmocka_unit_test_setup_teardown(test_how_a_run_ended, begin, end),
        cmocka_unit_test_setup_teardown(test_a_run_of_another_machine_is_silent, begin, end),
        cmocka_unit_test_setup_teardown(test_messages_and_the_last_of_each, begin, end),
        cmocka_unit_test_setup_teardown(test_each_record_is_told, begin, end),
        cmocka_unit_test_setup_teardown(test_a_table_has_all_of_a_run, begin, end),
        cmocka_unit_test_setup_teardown(test_metrics_of_a_run, begin, end),
        cmocka_unit_test_setup_teardown(test_a_store_of_mlflow_has_all_of_a_run, begin, end),
        cmocka_unit_test_setup_teardown(test_names_that_mlflow_takes, begin, end),
        cmocka_unit_test_setup_teardown(test_runs_of_a_folder, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
