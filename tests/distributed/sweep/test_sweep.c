/* SPDX-License-Identifier: Apache-2.0 */
/* Trainings that are drawn at random, on several ranks and on one: the same parameters, losses, metrics and optimizer states.
 *
 * TREK_SWEEP_RUNS: how many; TREK_TEST_SEED: this one alone, with TREK_SWEEP_ONLY of what is drawn only these options (names,
 * commas between them). One that fails is shrunk, by leaving out option after option, before it is told. */
#include <signal.h>
#include <unistd.h>

#include "nn/state.h"
#include "nn/state_modules.h"
#include "nn/state_tensors.h"
#include "tensor/log.h"
#include "tests/distributed/sweep/sweep.h"
#include "tests/support/processes.h"
#include "tests/support/support.h"
#include "tests/support/unit.h"

enum { SECONDS = 170, MOST_TEXT = 2048 };

static char self_folder[64];

/* --- comparing ------------------------------------------------------------------------------------ */

/* Where the loader stands says how it was divided, and a plan what was measured. */
static bool is_compared(const char *name) { return strcmp(name, "trek:loader") != 0; }

static bool compare_tensors(const char *name, const trek_tensor *a, const trek_tensor *b, char *text)
{
    if (!b || trek_tensor_numel(a) != trek_tensor_numel(b)) {
        snprintf(text, MOST_TEXT, "%s: %s", name, b ? "of another size" : "not there");
        return false;
    }
    double *x = test_read(a), *y = test_read(b);
    bool same = true;
    for (int64_t i = 0; i < trek_tensor_numel(a) && same; i++) {
        same = fabs(x[i] - y[i]) <= 1e-9 * (1 + fabs(y[i])) || (isnan(x[i]) && isnan(y[i])) || x[i] == y[i];
        if (!same)
            snprintf(text, MOST_TEXT, "%s[%d] is %.17g, on one rank %.17g", name, (int)i, x[i], y[i]);
    }
    free(x);
    free(y);
    return same;
}

static bool compare_files(const char *many, const char *one, char *text)
{
    trek_state *a = trek_state_read(many), *b = trek_state_read(one);
    bool same = a && b && trek_state_count(a) == trek_state_count(b);
    if (!same)
        snprintf(text, MOST_TEXT, "%d tensors, on one rank %d: %s", a ? trek_state_count(a) : -1, b ? trek_state_count(b) : -1,
                 trek_error());
    for (int k = 0; same && k < trek_state_count(a); k++) {
        const char *name = trek_state_name(a, k);
        same = !is_compared(name) || compare_tensors(name, trek_state_tensor(a, k), trek_state_find(b, name), text);
    }
    trek_state_free(&a);
    trek_state_free(&b);
    return same;
}

/* --- one case -------------------------------------------------------------------------------------- */

static char present[64]; /* what is told of a training that does not end */

static void hangs(int number)
{
    if (write(2, present, strlen(present)) < 0)
        _exit(3);
    _exit(2);
}

static void tell_options(const sweep *s, char *text, size_t size)
{
    size_t n = 0;
    text[0] = 0;
    for (int k = 0; k < sweep_options() && n + 40 < size; k++)
        if (sweep_option_is_drawn(k) && !s->off[k])
            n += (size_t)snprintf(text + n, size - n, "%s%s", n ? "," : "", sweep_option_name(k));
}

/* What is handed to processes: bits of what is left out, in hexadecimal. */
static void write_mask(const sweep *s, char *text)
{
    for (int k = 0; k < sweep_options(); k += 4)
        *text++ = "0123456789abcdef"[s->off[k] + 2 * s->off[k + 1] + 4 * s->off[k + 2] + 8 * s->off[k + 3]];
    *text = 0;
}

static void read_mask(sweep *s, const char *text)
{
    for (int k = 0; text[k / 4] && k < SWEEP_MOST_OPTIONS; k++) {
        int digit = text[k / 4] <= '9' ? text[k / 4] - '0' : text[k / 4] - 'a' + 10;
        s->off[k] = digit >> k % 4 & 1;
    }
}

/* A process of a job: SEED:MASK:PATH. */
static int play(const part *p)
{
    sweep s = { 0 };
    char mask[SWEEP_MOST_OPTIONS], path[128], number[16];
    unsigned long long seed;
    if (sscanf(p->detail, "%llu:%127[^:]:%127s", &seed, mask, path) != 3)
        return 2;
    s.seed = seed;
    read_mask(&s, mask);
    sweep_draw(&s);
    snprintf(number, sizeof number, "%d", p->process);
    setenv("TREK_RANK", number, 1);
    snprintf(number, sizeof number, "%d", p->processes);
    setenv("TREK_WORLD_SIZE", number, 1);
    setenv("TREK_LOCAL_WORLD_SIZE", number, 1);
    snprintf(number, sizeof number, "%d", p->port);
    setenv("TREK_PORT", number, 1);
    setenv("TREK_ADDRESS", p->address, 1);
    if (sweep_train(&s, path) == TREK_OK)
        return 0;
    fprintf(stderr, "%s: %s\n", trek_status_name(trek_error_status()), trek_error());
    return 1;
}

static bool train_processes(const sweep *s, const char *path, char *text)
{
    static world w;
    char detail[256], mask[SWEEP_MOST_OPTIONS];
    write_mask(s, mask);
    snprintf(detail, sizeof detail, "%llu:%s:%s", (unsigned long long)s->seed, mask, path);
    processes_run_all(&w, s->processes, "train", detail, -1, NULL);
    for (int p = 0; p < s->processes; p++)
        if (w.code[p] != 0) {
            snprintf(text, MOST_TEXT, "process %d of %d: %d: %.1000s", p, s->processes, w.code[p], w.text[p]);
            return false;
        }
    return true;
}

static bool train_here(sweep *s, const char *path, const char *who, char *text)
{
    if (sweep_train(s, path) == TREK_OK)
        return true;
    snprintf(text, MOST_TEXT, "%s: %s: %s", who, trek_status_name(trek_error_status()), trek_error());
    trek_error_clear();
    return false;
}

/* False: it differs, and text says how. */
static bool holds(const sweep *of, char *text)
{
    char many[96], one[96];
    sweep s = *of;
    sweep_draw(&s);
    sweep alone = sweep_on_one(&s);
    snprintf(present, sizeof present, "TREK_TEST_SEED=%llu hangs\n", (unsigned long long)s.seed);
    if (getenv("TREK_SWEEP_ONLY"))
        sweep_tell(&s);
    alarm(SECONDS);
    snprintf(many, sizeof many, "%s/many", self_folder);
    snprintf(one, sizeof one, "%s/one", self_folder);
    bool same = (s.processes > 1 ? train_processes(&s, many, text) : train_here(&s, many, "several ranks", text)) &&
        train_here(&alone, one, "one rank", text) && compare_files(many, one, text);
    alarm(0);
    unlink(many);
    unlink(one);
    return same;
}

/* Leaves out what it fails without. */
static void shrink(sweep *s, char *text)
{
    static char other[MOST_TEXT];
    for (int k = sweep_options() - 1; k >= 0; k--) {
        if (!sweep_option_is_drawn(k) || s->off[k])
            continue;
        s->off[k] = true;
        if (holds(s, other))
            s->off[k] = false;
        else
            memcpy(text, other, sizeof other);
    }
}

/* --- many of them ------------------------------------------------------------------------------------ */

static void keep_only(sweep *s, const char *names)
{
    memset(s->off, true, sizeof s->off);
    char copy[MOST_TEXT];
    snprintf(copy, sizeof copy, "%s", names);
    for (char *name = strtok(copy, ","); name; name = strtok(NULL, ","))
        for (int k = 0; k < sweep_options(); k++)
            s->off[k] &= strcmp(sweep_option_name(k), name) != 0;
}

static int64_t how_many(void)
{
    const char *runs = getenv("TREK_SWEEP_RUNS");
    return getenv("TREK_TEST_SEED") ? 1 : runs ? atoll(runs) : test_short() ? 40 : 400;
}

static void drawn_trainings(void **state)
{
    static char text[MOST_TEXT], only[MOST_TEXT];
    int64_t found = 0, runs = how_many();
    uint64_t first = test_seed();
    for (int64_t k = 0; k < runs; k++) {
        sweep s = { .seed = first + (uint64_t)k };
        if (getenv("TREK_SWEEP_ONLY"))
            keep_only(&s, getenv("TREK_SWEEP_ONLY"));
        if (holds(&s, text))
            continue;
        found++;
        if (!getenv("TREK_SWEEP_WHOLE"))
            shrink(&s, text);
        tell_options(&s, only, sizeof only);
        print_error("again: TREK_TEST_SEED=%llu TREK_SWEEP_ONLY=%s\n%s\n", (unsigned long long)s.seed, only, text);
    }
    if (found)
        fail_msg("%d of %d trainings differ from those on one rank", (int)found, (int)runs);
}

int main(void)
{
    part p;
    trek_log_set(TREK_LOG_LEVEL_ERROR, NULL, NULL);
    if (processes_part(&p))
        return play(&p);
    signal(SIGALRM, hangs);
    strcpy(self_folder, "/dev/shm/trek-sweep-XXXXXX"); /* in memory: checkpoints are synced */
    if (!mkdtemp(self_folder) && !mkdtemp(strcpy(self_folder, "/tmp/trek-sweep-XXXXXX")))
        return 1;
    const struct CMUnitTest tests[] = { cmocka_unit_test(drawn_trainings) };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    rmdir(self_folder);
    return failed;
}
