/* SPDX-License-Identifier: Apache-2.0 */
/* Libraries that are opened when they are needed: found, not there, another one under the name, by several threads at once. */
#include <fcntl.h>
#include <pthread.h>
#include <sys/auxv.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "data/image.h"
#include "monitor/monitor.h"
#include "tensor/late.h"
#include "tensor/plugin.h"
#include "tests/support/scoped.h"
#include "tests/support/support.h"

typedef double real_fn(double);
static struct { real_fn *cos, *sin; } math;
static const char *const names[] = { "cos", "sin" }, *const others[] = { "cos", "trek_is_not_there" };
#define MATH(...) { .package = "mathematics", .names = names, .functions = &math, .n = 2, .files = { __VA_ARGS__ } }

static void test_found(void **state)
{
    trek_late late = MATH("libtrek-nowhere.so.7", "libm.so.6"); /* the second of them */
    assert_true(trek_late_there(&late, "a wave") && trek_late_there(&late, "a wave"));
    assert_true(math.cos(0) == 1 && math.sin(0) == 0);
    assert_int_equal(trek_error_status(), TREK_OK);
}

static void expect_absent(trek_late *late, const char *text)
{
    for (int k = 0; k < 2; k++) { /* said again, and not tried again */
        assert_false(trek_late_there(late, "a wave"));
        expect_error(TREK_ERR_UNSUPPORTED, text);
    }
}

static void test_absent(void **state)
{
    trek_late nowhere = MATH("libtrek-nowhere.so.7"), lacking = MATH("libm.so.6"), named = MATH("libm.so.6");
    expect_absent(&nowhere, "a wave: it needs mathematics (libtrek-nowhere.so.7: ");
    lacking.names = others;
    expect_absent(&lacking, "libm.so.6: it has no trek_is_not_there");
    named.variable = "TREK_TEST_LATE";
    setenv("TREK_TEST_LATE", "/nowhere/libm.so", 1);
    expect_absent(&named, "a file named in TREK_TEST_LATE (/nowhere/libm.so: ");
    trek_late again = MATH("libm.so.6");
    again.variable = "TREK_TEST_LATE";
    setenv("TREK_TEST_LATE", "", 1);
    assert_true(trek_late_there(&again, "a wave"));
}

static trek_late shared = MATH("libm.so.6");

static void *call(void *arg)
{
    return trek_late_there(&shared, "a wave") && math.cos(0) == 1 ? &shared : NULL;
}

static void test_at_once(void **state)
{
    pthread_t threads[8];
    void *good;
    for (int k = 0; k < 8; k++)
        assert_int_equal(pthread_create(&threads[k], NULL, call, NULL), 0);
    for (int k = 0; k < 8; k++) {
        pthread_join(threads[k], &good);
        assert_non_null(good);
    }
}

/* One of the library's own: an image, where libpng is not. */
static void test_image(void **state)
{
    setenv("TREK_LIBPNG", "/nowhere/libpng.so", 1);
    trek_tensor *image = trek_tensor_zeros(trek_dims(3, 2, 2), TREK_U8, trek_cpu(0));
    FAILS(trek_image_write_png("late.png", image), TREK_ERR_UNSUPPORTED, "late.png: it needs libpng");
    FILE *file = fopen("late.png", "rb");
    assert_null(file);
    trek_monitor *monitor = trek_monitor_new(&(trek_monitor_opts){ .folder = "late", .name = "run" });
    FAILS(trek_monitor_image(monitor, "none", 0, image), TREK_ERR_UNSUPPORTED, "monitor_image: it needs libpng");
    trek_monitor_free(&monitor);
    assert_int_equal(test_remove("late"), 0);
    trek_tensor_release(image);
}

/* --- by which names libraries are opened ---------------------------------------------------------- */

static const char *program, *plugins;

static void copy(const char *from, const char *to, mode_t mode)
{
    struct stat about;
    off_t at = 0;
    int in = open(from, O_RDONLY | O_CLOEXEC), out = open(to, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0700);
    assert_true(in >= 0 && out >= 0 && fstat(in, &about) == 0);
    while (at < about.st_size)
        assert_true(sendfile(out, in, &at, (size_t)(about.st_size - at)) > 0);
    assert_int_equal(fchmod(out, mode), 0);
    close(in);
    close(out);
}

/* A process that is called `name` in `folder` says which way opens a library: its bits as the exit status. */
enum { PLANTED = 1, BY_PATH = 2, BY_LATE = 4, SECURE = 8 };
static int say_what_opens(const char *file, const char *name, const char *folder, const char *path, const char *library)
{
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        if (chdir(folder) != 0)
            _exit(64);
        setenv("TREK_PLUGIN_PATH", path, 1);
        setenv("TREK_TEST_LATE", library, 1);
        execl(file, name, "opens", (char *)NULL);
        _exit(64);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static int opens(void)
{
    char why[200];
    trek_late late = MATH("libtrek-nowhere.so.7");
    late.variable = "TREK_TEST_LATE";
    int said = getauxval(AT_SECURE) ? SECURE : 0;
    said |= trek_plugin_open("trek-planted", why, sizeof why) ? PLANTED : 0;
    said |= trek_plugin_open("trek-gloo", why, sizeof why) ? BY_PATH : 0;
    return said | (trek_late_there(&late, "a wave") ? BY_LATE : 0);
}

/* What lies in the folder where a program is started is not loaded, whatever it is called, nor what relative names mean there. */
static void test_current_folder(void **state)
{
    char folder[] = "/tmp/trek-late-XXXXXX", gloo[4096], path[4096], other[128];
    snprintf(gloo, sizeof gloo, "%s/libtrek-gloo.so", plugins ? plugins : "");
    if (!plugins || access(gloo, R_OK) != 0)
        skip();
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/libtrek-planted.so", folder);
    copy(gloo, path, 0644);
    assert_int_equal(say_what_opens(program, "./prog", folder, plugins, "libm.so.6"), BY_PATH | BY_LATE);
    assert_int_equal(say_what_opens(program, "./prog", folder, ".", "./libm.so.6"), 0);
    snprintf(path, sizeof path, "%s/libtrek-gloo.so", folder);
    copy(gloo, path, 0644);
    assert_int_equal(say_what_opens(program, "prog", folder, ".:../tmp", "../lib/libm.so.6"), 0);
    snprintf(other, sizeof other, "%s/prog", folder); /* beside the program's own file, where its owner has put it */
    copy(program, other, 0700);
    assert_int_equal(say_what_opens(other, "prog", "/", "", "libm.so.6"), PLANTED | BY_PATH | BY_LATE);
    snprintf(path, sizeof path, "%s/libtrek-planted.so", folder);
    assert_int_equal(chmod(path, 0666), 0); /* and not where anybody may write */
    assert_int_equal(say_what_opens(other, "prog", folder, "", "libm.so.6"), BY_PATH | BY_LATE);
    if (geteuid() == 0 && chown(other, 65534, 65534) == 0 && chmod(other, 06755) == 0 && chmod(folder, 0755) == 0) {
        int said = say_what_opens(other, "prog", "/", plugins, "libm.so.6"); /* it has other rights than who starts it */
        assert_true(!(said & SECURE) || !(said & BY_LATE));
    }
    assert_int_equal(test_remove(folder), 0);
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "opens") == 0)
        return opens();
    program = realpath("/proc/self/exe", NULL);
    plugins = getenv("TREK_PLUGIN_PATH");
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_found), cmocka_unit_test(test_absent),
                                        cmocka_unit_test(test_at_once),
                                        cmocka_unit_test(test_image), cmocka_unit_test(test_current_folder) };
    return cmocka_run_group_tests_name("late", tests, NULL, NULL);
}
