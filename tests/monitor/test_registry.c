/* SPDX-License-Identifier: Apache-2.0 */
/* monitor/registry: where trek-top finds runs. What gone processes have left is removed; what others can write is not used. */
#include <sys/stat.h>
#include <sys/wait.h>

#include "monitor/monitor.h"
#include "monitor/registry.h"
#include "tensor/log.h"
#include "tests/monitor/watching.h"

static trek_monitor *watch(const char *name)
{
    trek_monitor *m = trek_monitor_new(&(trek_monitor_opts){ .folder = folder, .name = name });
    assert_non_null(m);
    return m;
}

static char registry[100];

static void count_found(void *n, const char *path)
{
    assert_non_null(strstr(path, folder));
    ++*(int *)n;
}

static int count_told(char why[400])
{
    int n = 0;
    trek_registry_list(count_found, &n, why, 400);
    return n;
}

static void write_entry(const char *name, const char *text)
{
    char path[160];
    snprintf(path, sizeof path, "%s/%s", registry, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static int entries(void)
{
    char command[200];
    int n = 0;
    snprintf(command, sizeof command, "ls %s | wc -l", registry);
    FILE *list = popen(command, "r");
    assert_true(list && fscanf(list, "%d", &n) == 1);
    pclose(list);
    return n;
}

static void use_registry(void)
{
    setenv("XDG_RUNTIME_DIR", folder, 1);
    snprintf(registry, sizeof registry, "%s/trek", folder);
}

/* Who lists removes what processes have left that have gone, and so does who writes; what may be of other containers stays. */
static void test_entries_of_gone_processes_are_removed(void **state)
{
    char name[32], text[300], why[400], before[32];
    use_registry();
    trek_monitor *m = watch("here");
    assert_int_equal(entries(), 1);
    assert_int_equal(count_told(why), 1);
    pid_t gone = fork();
    if (gone == 0)
        _exit(0);
    waitpid(gone, NULL, 0);
    snprintf(name, sizeof name, "%ld.run", (long)gone);
    snprintf(text, sizeof text, "%s/gone\n", folder);
    write_entry(name, text);
    write_entry("notes.txt", "not ours\n");
    assert_int_equal(entries(), 3);
    assert_int_equal(count_told(why), 1); /* lists */
    assert_int_equal(entries(), 2);
    write_entry(name, text);
    snprintf(text, sizeof text, "%s/gone\npid:[1] 77\n", folder); /* another container's, which cannot be asked */
    write_entry("1.run", text);
    trek_monitor *second = watch("too"); /* writes */
    assert_int_equal(entries(), 3);
    assert_int_equal(count_told(why), 1);
    assert_int_equal(entries(), 3);
    trek_monitor_free(&second);
    trek_monitor_free(&m);
    assert_int_equal(entries(), 2);
    char space[64] = "";
    assert_true(readlink("/proc/self/ns/pid", space, sizeof space - 1) > 0);
    snprintf(before, sizeof before, "%ld.run", (long)getpid()); /* a number that another process had before */
    snprintf(text, sizeof text, "%s/before\n%s 1\n", folder, space);
    write_entry(before, text);
    assert_int_equal(count_told(why), 0);
    assert_int_equal(entries(), 2);
    assert_string_equal(why, "");
    unsetenv("XDG_RUNTIME_DIR");
}

static int warnings;
static char last_warning[500];

static void keep_warning(trek_log_level level, const char *message, void *arg)
{
    warnings++;
    snprintf(last_warning, sizeof last_warning, "%s", message);
}

/* A process of its own: two monitors, and one warning that says so. */
static int make_two(const char *says)
{
    use_registry();
    trek_log_set(TREK_LOG_LEVEL_WARNING, keep_warning, NULL);
    for (int k = 0; k < 2; k++) {
        trek_monitor *m = trek_monitor_new(&(trek_monitor_opts){ .folder = folder, .name = "unused" });
        trek_monitor_free(&m);
    }
    bool well = warnings == 1 && strstr(last_warning, says) && strstr(last_warning, registry);
    if (!well)
        fprintf(stderr, "%d warnings: %s\n", warnings, last_warning);
    return !well;
}

static void expect_unused(const char *says)
{
    char why[400];
    pid_t child = fork();
    if (child == 0) {
        execl("/proc/self/exe", "test_registry", folder, says, (char *)NULL);
        _exit(99);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(count_told(why), 0);
    assert_non_null(strstr(why, says));
}

static void test_a_registry_of_others_is_not_used(void **state)
{
    char text[300], name[32], command[500];
    use_registry();
    assert_int_equal(mkdir(registry, 0700), 0);
    snprintf(name, sizeof name, "%ld.run", (long)getpid()); /* somebody else's word */
    snprintf(text, sizeof text, "%s/lie\n", folder);
    write_entry(name, text);
    assert_int_equal(chmod(registry, 0722), 0);
    expect_unused("others may write to it");
    assert_int_equal(entries(), 1);
    assert_int_equal(chmod(registry, 0700), 0);
    if (getuid() == 0) {
        assert_int_equal(chown(registry, 12345, 12345), 0);
        expect_unused("it belongs to another user");
        assert_int_equal(entries(), 1);
        assert_int_equal(chown(registry, 0, 0), 0);
    }
    snprintf(command, sizeof command, "mv %s %s-real && ln -s %s-real %s", registry, registry, registry, registry);
    assert_int_equal(system(command), 0);
    expect_unused("it is not a folder");
    unsetenv("XDG_RUNTIME_DIR");
}

int main(int argc, char **argv)
{
    if (argc == 3) {
        snprintf(folder, sizeof folder, "%s", argv[1]);
        return make_two(argv[2]);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_entries_of_gone_processes_are_removed, begin, end),
        cmocka_unit_test_setup_teardown(test_a_registry_of_others_is_not_used, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
