/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints that are damaged, cut off by a kill, or written without memory: noticed, and nothing is lost. */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "autograd/ops.h"
#include "data/loader.h"
#include "distributed/balance/plan.h"
#include "distributed/checkpoint.h"
#include "distributed/comm/comm.h"
#include "distributed/trainer.h"
#include "graph/flow.h"
#include "nn/layers.h"
#include "nn/state.h"
#include "tensor/log.h"
#include "tests/distributed/stopped_run.h"
#include "tests/support/support.h"
#include "tests/support/tamed.h"
#include "tests/support/unit.h"

/* --- damage ---------------------------------------------------------------------------------------------- */

/* Everything a checkpoint holds, optimizer and step included. */
static char *all_of(trek_graph *graph, trek_loader *loader, size_t *size)
{
    assert_int_equal(trek_checkpoint_save(graph, loader, path_of("all")), TREK_OK);
    return read_file(path_of("all"), size);
}

/* Two checkpoints of one run: what a damaged one of an earlier step left behind would show. */
static void damage_is_noticed(void **state)
{
    for (int ranks = 1; ranks <= 2; ranks++) {
        run_opts o = { .dtype = TREK_F32, .ranks = ranks, .separate = ranks == 2, .scaled = ranks == 2, .norm = true };
        trek_graph *graph = begin(&o);
        trek_loader *loader = loader_new(3);
        train(graph, &o, loader, 5, false, true);
        train(graph, &o, loader, 8, true, false);
        size_t size, size_before, size_after;
        char *data = read_file(path_of("step-5"), &size), *before = all_of(graph, loader, &size_before);
        size_t header = 8 + (unsigned char)data[0] + 256u * (unsigned char)data[1];
        int named = 0;
        for (uint32_t k = 0; k < 400; k++) {
            size_t bit = (size_t)(((double)test_number(ranks == 1 ? 51 : 52, k) + 1) / 2 * 8 * (double)size);
            data[bit / 8] ^= (char)(1u << bit % 8);
            write_file(path_of("flipped"), data, size);
            expect_refusal(graph, loader, path_of("flipped"), TREK_ERR_FORMAT,
                           bit / 8 >= header ? "its checksum does not match" : "flipped");
            named += bit / 8 >= header;
            data[bit / 8] ^= (char)(1u << bit % 8);
        }
        assert_true(named > 50 && named < 350);
        for (uint32_t k = 0; k < 100; k++) {
            size_t cut = (size_t)(((double)test_number(53, k) + 1) / 2 * (double)size);
            write_file(path_of("flipped"), data, cut);
            expect_refusal(graph, loader, path_of("flipped"), TREK_ERR_FORMAT, "flipped");
        }
        char *after = all_of(graph, loader, &size_after);
        assert_true(size_after == size_before && memcmp(before, after, size_before) == 0);
        assert_int_equal(trek_checkpoint_load(graph, loader, path_of("step-5")), TREK_OK);
        free(data);
        free(before);
        free(after);
        end_run(&graph, &loader);
    }
}

static void overwrite(char *data, size_t size, const char *from, const char *to)
{
    char *at = memmem(data, size, from, strlen(from));
    assert_true(at && strlen(from) == strlen(to));
    memcpy(at, to, strlen(to));
}

static char warned[512];

static void take_warning(trek_log_level level, const char *message, void *arg)
{
    if (level == TREK_LOG_LEVEL_WARNING)
        snprintf(warned, sizeof warned, "%s", message);
}

/* Another program has removed its text: the checkpoint is read, and it is said. If only the key or the beginning of the
 * text is damaged, it is refused. */
static void without_a_checksum(void **state)
{
    run_opts o = { .dtype = TREK_F32, .ranks = 1 };
    trek_graph *graph = begin(&o);
    trek_loader *loader = loader_new(3);
    train(graph, &o, loader, 5, false, true);
    size_t size;
    char *data = read_file(path_of("step-5"), &size);
    overwrite(data, size, "\"trek.checksum\":", "\"other.writer!\":");
    write_file(path_of("bare"), data, size);
    expect_refusal(graph, loader, path_of("bare"), TREK_ERR_FORMAT, "its checksum does not match");
    overwrite(data, size, "\"other.writer!\":\"trek-xxh64 ", "\"trek.checksum\":\"TREK-XXH64 ");
    write_file(path_of("bare"), data, size);
    expect_refusal(graph, loader, path_of("bare"), TREK_ERR_FORMAT, "trek.checksum");
    overwrite(data, size, "\"trek.checkpoint\":\"2\"", "\"trek.checkpoint\":\"1\"");
    overwrite(data, size, "\"trek.checksum\":", "\"other.writer!\":");
    write_file(path_of("bare"), data, size);
    expect_refusal(graph, loader, path_of("bare"), TREK_ERR_FORMAT, "version 1 of checkpoints is unknown");
    overwrite(data, size, "\"trek.checkpoint\":\"1\"", "\"trek.checkpoint\":\"2\"");
    write_file(path_of("bare"), data, size);
    trek_log_set(TREK_LOG_LEVEL_WARNING, take_warning, NULL);
    assert_int_equal(trek_checkpoint_load(graph, loader, path_of("bare")), TREK_OK);
    trek_log_set(TREK_LOG_LEVEL_WARNING, NULL, NULL);
    assert_non_null(strstr(warned, "bare: the checkpoint has no checksum"));
    free(data);
    end_run(&graph, &loader);
}

/* --- kills and empty memory ------------------------------------------------------------------------------ */

/* In a process of its own: saves as fast as it can, another state each time, until it is killed. behind: by a thread. */
static int save_for_ever(const char *path, bool behind)
{
    trek_checkpoint_writer *writer = behind ? trek_checkpoint_writer_new() : NULL;
    run_opts o = { .dtype = TREK_F32, .ranks = 1 };
    trek_graph *graph = begin(&o);
    trek_loader *loader = loader_new(3);
    for (int64_t steps = 1; steps < 100000; steps++) {
        train(graph, &o, loader, steps, steps > 1, false);
        trek_status status = writer ? trek_checkpoint_writer_save(writer, graph, loader, path)
            : trek_checkpoint_save(graph, loader, path);
        if (status == TREK_OK && writer && steps == 1)
            status = trek_checkpoint_writer_wait(writer);
        if (status != TREK_OK)
            return 3;
        if (steps == 1 && write(STDOUT_FILENO, "s", 1) != 1)
            return 4;
    }
    return 0;
}

static pid_t start_saver(const char *path, bool behind)
{
    int ends[2];
    char byte;
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], STDOUT_FILENO);
        execl("/proc/self/exe", "test_checkpoint", behind ? "save behind" : "save", path, folder, (char *)NULL);
        _exit(9);
    }
    close(ends[1]);
    assert_true(child > 0 && read(ends[0], &byte, 1) == 1); /* the first one is there */
    close(ends[0]);
    return child;
}

static void killed_while_saving(void **state)
{
    run_opts o = { .dtype = TREK_F32, .ranks = 1 };
    char path[512];
    snprintf(path, sizeof path, "%s", path_of("killed"));
    static record got, again;
    for (int round = 0; round < 12; round++) {
        pid_t child = start_saver(path, round % 2 == 1);
        usleep((useconds_t)((test_number(77, (uint32_t)round) + 1) * 15000));
        int status;
        assert_int_equal(kill(child, SIGKILL), 0);
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        trek_loader *loader, *plain_loader;
        trek_graph *graph = begin_elsewhere(&o, &loader);
        if (trek_checkpoint_load(graph, loader, path) != TREK_OK)
            fail_msg("round %d: %s", round, trek_error());
        look(graph, loader, &got);
        assert_true(got.steps > 0);
        if (got.steps <= 3 * STEPS) { /* and it is the state that the run had then */
            trek_seed(0);
            trek_graph *plain = begin(&o);
            plain_loader = loader_new(3);
            train(plain, &o, plain_loader, got.steps, false, false);
            look(plain, plain_loader, &again);
            expect_close(&got, &again, 0, "after a kill");
            end_run(&plain, &plain_loader);
        }
        end_run(&graph, &loader);
    }
}

static void out_of_memory(void **state)
{
    static record before, after, expected;
    prefetch = TREK_ZERO; /* a thread's failure would come to light in the next batch */
    for (int ranks = 1; ranks <= 2; ranks++) {
        run_opts o = { .dtype = TREK_F32, .ranks = ranks, .separate = ranks == 2, .scaled = true };
        trek_graph *graph = begin(&o);
        trek_loader *loader = loader_new(3);
        train(graph, &o, loader, 5, false, true);
        look(graph, loader, &expected);
        train(graph, &o, loader, 6, true, false);
        look(graph, loader, &before);
        size_t size, now;
        char *kept = read_file(path_of("step-5"), &size);
        int failed_saves = 0, failed_loads = 0;
        test_memory.fail_count = 3;
        for (int64_t fail_at = 1; fail_at < 400; fail_at++) {
            char path[512];
            snprintf(path, sizeof path, "%s", path_of("step-5"));
            test_allocator_restart(fail_at);
            trek_status status = trek_checkpoint_save(graph, loader, path);
            test_allocator_restart(0);
            if (status != TREK_OK) {
                failed_saves++;
                assert_int_equal(status, TREK_ERR_MEMORY);
                char *data = read_file(path, &now);
                assert_true(now == size && memcmp(data, kept, size) == 0);
                free(data);
            }
            trek_error_clear();
            write_file(path, kept, size);
            test_allocator_restart(fail_at);
            status = trek_checkpoint_load(graph, loader, path);
            test_allocator_restart(0);
            trek_error_clear();
            look(graph, loader, &after);
            if (status == TREK_OK) {
                expect_close(&after, &expected, 0, "loaded");
                break;
            }
            failed_loads++;
            assert_int_equal(status, TREK_ERR_MEMORY);
            assert_memory_equal(&after, &before, sizeof after);
        }
        test_memory.fail_count = 0;
        assert_true(failed_saves > 20 && failed_loads > 20);
        train(graph, &o, loader, 7, true, false);
        free(kept);
        end_run(&graph, &loader);
    }
    prefetch = 0;
}

int main(int argc, char **argv)
{
    setenv("TREK_CACHE", "off", 1); /* so that each allocation can fail */
    if (test_allocator_use() != TREK_OK)
        return 1;
    if (argc == 4 && strncmp(argv[1], "save", 4) == 0) {
        alarm(60);
        return save_for_ever(argv[2], strcmp(argv[1], "save") != 0);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(damage_is_noticed, begin_test), cmocka_unit_test_setup(without_a_checksum, begin_test),
        cmocka_unit_test_setup(killed_while_saving, begin_test), cmocka_unit_test_setup(out_of_memory, begin_test),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
