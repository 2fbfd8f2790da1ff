/* SPDX-License-Identifier: Apache-2.0 */
/* Random sequences of valid and invalid calls, in blocks of 500 that begin and end with nothing. After every call: an
 * error is set if and only if it failed, an error that was there stays the first, clearing clears. After every block: no
 * memory is held, no tape node is left. Each block runs twice, on memory that was filled with different bytes: results
 * that differ were read from what nobody wrote. Memory comes from malloc block by block, so that the address sanitizer
 * sees each one's end. Blocks run in processes of their own; one that fails is run again with calls left out.
 *   test_call_sequences [SEED [CALLS]]    TREK_SEQUENCE_SEED, TREK_SEQUENCE_CALLS: the same
 *   test_call_sequences SEED:BLOCK        that block again, with its calls shown
 *   TREK_SEQUENCE_WITHOUT=name,name       leaves these calls out */
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "autograd/grad.h"
#include "autograd/leaf.h"
#include "tensor/log.h"
#include "tests/sequences/sequence.h"
#include "tests/support/support.h"
#include "tests/support/unit.h"

enum { BLOCK = 500 };
#if defined(__SANITIZE_ADDRESS__)
static long n_calls = 50000;
#else
static long n_calls = 20000;
#endif
static unsigned long first_seed = 1;
static bool show;

/* What a block's process tells the one that started it: shared memory. */
typedef struct board {
    int at;                   /* the call at work */
    char name[64], text[512]; /* text: what was wrong */
    uint64_t digest[2][BLOCK];
    char names[BLOCK][32];
    long failed, made;
    uint64_t seed;            /* what the process is to run, */
    bool left_out[BLOCK];     /* and without which calls */
} board;
static board *told;
static int board_file;

static void complain(const char *format, ...) TREK_PRINTF(1, 2);
static void complain(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    if (!told->text[0])
        vsnprintf(told->text, sizeof told->text, format, arguments);
    va_end(arguments);
}

/* --- memory ------------------------------------------------------------------------------ */

static unsigned char poison;
static long blocks_alive;

static void *allocate(size_t bytes, size_t alignment, void *arg)
{
    void *memory = NULL;
    if (bytes > (size_t)256 << 20 || posix_memalign(&memory, alignment < sizeof(void *) ? sizeof(void *) : alignment,
                                                    bytes ? bytes : 1) != 0)
        return NULL;
    __atomic_add_fetch(&blocks_alive, 1, __ATOMIC_RELAXED);
    return memset(memory, poison, bytes);
}

static void release(void *memory, size_t bytes, void *arg)
{
    if (!memory)
        return;
    memset(memory, 0xDB, bytes);
    __atomic_sub_fetch(&blocks_alive, 1, __ATOMIC_RELAXED);
    free(memory);
}

/* --- one call ----------------------------------------------------------------------------- */

static uint64_t mix(uint64_t a, uint64_t b) { return (a ^ b) * 0x9E3779B97F4A7C15u ^ (a >> 29); }

/* Of the shape and the numbers of a result; NaN have no sign. */
static uint64_t digest_of(const trek_var *var)
{
    double values[1024];
    trek_shape shape = trek_var_shape(var);
    uint64_t digest = mix((uint64_t)trek_var_dtype(var) + 1, (uint64_t)shape.ndim);
    for (int d = 0; d < shape.ndim; d++)
        digest = mix(digest, (uint64_t)shape.sizes[d]);
    int64_t n = trek_var_numel(var);
    if (n > 1024 || trek_tensor_to_host(trek_var_data(var), TREK_F64, values, sizeof *values * (size_t)n) != TREK_OK)
        return digest;
    for (int64_t i = 0; i < n; i++) {
        uint64_t bits = 1;
        if (!isnan(values[i]))
            memcpy(&bits, &values[i], sizeof bits);
        digest = mix(digest, bits);
    }
    return digest;
}

static const sequence_call *draw_call(pool *p)
{
    const sequence_call *call;
    do {
        int kind = pool_below(p, 10);
        call = kind < 4   ? &sequence_ops[pool_below(p, sequence_n_ops)]
               : kind < 6 ? &sequence_functions[pool_below(p, sequence_n_functions)]
                          : &sequence_objects[pool_below(p, sequence_n_objects)];
    } while (!call->run);
    return call;
}

static bool is_left_out(const char *name)
{
    const char *list = getenv("TREK_SEQUENCE_WITHOUT"), *at = list ? strstr(list, name) : NULL;
    size_t n = strlen(name);
    return at && (at == list || at[-1] == ',') && (at[n] == 0 || at[n] == ',');
}

static void check_errors(const sequence_call *call, outcome made, trek_status before, const char *message)
{
    trek_status status = trek_error_status();
    if ((status == TREK_OK) != (trek_error()[0] == 0))
        complain("%s: status %s with the message \"%s\"", call->name, trek_status_name(status), trek_error());
    if (before != TREK_OK) { /* an error was there: it stays the first */
        if (status != before || strcmp(trek_error(), message) != 0)
            complain("%s: the first error was \"%s\", now it is \"%s\"", call->name, message, trek_error());
    } else if (made == OUTCOME_MADE && status != TREK_OK) {
        complain("%s: succeeded with an error: %s", call->name, trek_error());
    } else if (made == OUTCOME_FAILED && status == TREK_OK) {
        complain("%s: failed without an error", call->name);
    }
    trek_error_clear();
    if (trek_error_status() != TREK_OK || trek_error()[0])
        complain("%s: clearing leaves an error", call->name);
}

/* Gradients of the newest leaves, after a pass back from what the call made. */
static uint64_t pass_back(pool *p)
{
    uint64_t digest = 3;
    trek_backward_opts opts = { .create_graph = pool_chance(p, 20) };
    trek_backward_with(trek_sum(p->made, trek_dims_all(), false), NULL, &opts);
    trek_error_clear();
    for (int k = p->n_leaves > 30 ? p->n_leaves - 30 : 0; k < p->n_leaves; k++) {
        trek_var *grad = trek_var_grad(p->leaves[k]);
        if (grad)
            digest = mix(digest, digest_of(grad));
    }
    trek_error_clear();
    return digest;
}

static void run_call(pool *p, uint64_t seed, int at, int pass)
{
    p->state = mix(seed, (uint64_t)at + 1);
    p->made = NULL;
    p->number = 0;
    p->out = 1 + pool_below(p, 4);
    const sequence_call *call = draw_call(p);
    told->at = at;
    snprintf(told->names[at], sizeof told->names[at], "%s", call->name);
    char message[64] = "";
    bool beforehand = pool_chance(p, 3);
    if (beforehand) {
        snprintf(message, sizeof message, "an error from before call %d", at);
        trek_fail(TREK_ERR_CANCELLED, "%s", message);
    }
    outcome made = is_left_out(call->name) ? OUTCOME_EITHER : call->run(p);
    if (pass == 0)
        *(made == OUTCOME_FAILED ? &told->failed : &told->made) += 1;
    if (show && pass == 0)
        printf("%3d %-28s %s %s\n", at, call->name, made == OUTCOME_FAILED ? "failed" : "", trek_error());
    check_errors(call, made, beforehand ? TREK_ERR_CANCELLED : TREK_OK, message);
    uint64_t digest = made == OUTCOME_FAILED ? 1 : 2;
    if (p->made)
        digest = digest_of(p->made);
    trek_error_clear();
    if (p->made && trek_var_requires_grad(p->made) && pool_chance(p, 40))
        digest = mix(digest, pass_back(p));
    if (!isnan(p->number)) {
        uint64_t bits;
        memcpy(&bits, &p->number, sizeof bits);
        digest = mix(digest, bits);
    }
    told->digest[pass][at] = digest;
    trek_error_clear();
}

/* --- a block, in a process of its own ---------------------------------------------------- */

static void run_pass(uint64_t seed, int pass, const bool *left_out)
{
    static pool p;
    poison = pass ? 0xFF : 0x7F;
    pool_begin(&p, seed);
    for (int at = 0; at < BLOCK && !told->text[0]; at++)
        if (!left_out[at])
            run_call(&p, seed, at, pass);
    pool_end(&p);
    if (trek_tape_size() != 0)
        complain("%lld nodes are left on the tape", (long long)trek_tape_size());
    static int64_t held; /* after the first pass: what is made once, such as a thread's pool */
    int64_t now = trek_memory_usage(trek_cpu(0)).allocated;
    if (pass > 0 && now > held)
        complain("%lld bytes are held", (long long)(now - held));
    held = now;
}

static void run_block(uint64_t seed, const bool *left_out)
{
    setenv("TREK_CACHE", "off", 1);
    trek_log_set(TREK_LOG_LEVEL_ERROR, NULL, NULL);
    if (trek_allocator_set(&(trek_allocator){ .allocate = allocate, .release = release }) != TREK_OK)
        complain("the allocator is refused: %s", trek_error());
    for (int pass = 0; pass < 2 && !told->text[0]; pass++)
        run_pass(seed, pass, left_out);
    for (int at = 0; at < BLOCK && !told->text[0]; at++)
        if (!left_out[at] && told->digest[0][at] != told->digest[1][at]) {
            told->at = at;
            complain("%s: the result depends on what memory held before", told->names[at]);
        }
}

/* A block's process is this program again: a fork of one that has used trek would be refused. */
static int start_block(bool quiet)
{
    pid_t child = fork();
    if (child == 0) {
        char number[16];
        snprintf(number, sizeof number, "%d", board_file);
        setenv("TREK_SEQUENCE_BOARD", number, 1);
        setenv("TREK_SEQUENCE_SHOW", show ? "1" : "", 1);
        for (int k = 0; k < 5; k++) /* cmocka's handlers are the parent's */
            signal((const int[]){ SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT }[k], SIG_DFL);
        if (!quiet || freopen("/dev/null", "w", stderr))
            execl("/proc/self/exe", "test_call_sequences", (char *)NULL);
        _exit(3);
    }
    int status = 0;
    return child > 0 && waitpid(child, &status, 0) == child ? status : -1;
}

/* True if the block passed; else what was wrong is in told->text, and told->at the call. */
static bool passes(uint64_t seed, const bool *left_out, bool quiet)
{
    memset(told, 0, sizeof *told);
    told->seed = seed;
    memcpy(told->left_out, left_out, sizeof told->left_out);
    fflush(NULL);
    int status = start_block(quiet);
    if (status == -1)
        complain("no process: fork or waitpid failed");
    else if (WIFSIGNALED(status))
        complain("%s: killed by signal %d", told->names[told->at], WTERMSIG(status));
    else if (WEXITSTATUS(status) != 0)
        complain("%s: ended with status %d", told->names[told->at], WEXITSTATUS(status));
    return !told->text[0];
}

/* Leaves out what the failure does not need: first large parts, then calls. */
static void shrink(uint64_t seed, bool *left_out)
{
    for (int at = told->at + 1; at < BLOCK && told->at > 0; at++)
        left_out[at] = true;
    if (passes(seed, left_out, true))
        memset(left_out, 0, BLOCK); /* what came later mattered: a leak */
    for (int part = BLOCK / 2; part >= 1; part /= 2)
        for (int from = 0; from < BLOCK; from += part) {
            bool trial[BLOCK], fewer = false;
            memcpy(trial, left_out, sizeof trial);
            for (int at = from; at < from + part && at < BLOCK; at++) {
                fewer |= !trial[at];
                trial[at] = true;
            }
            if (fewer && !passes(seed, trial, true))
                memcpy(left_out, trial, sizeof trial);
        }
}

static void tell(uint64_t seed, long block, bool *left_out)
{
    printf("seed %lu, block %ld, call %d: %s\n", first_seed, block, told->at, told->text);
    shrink(seed, left_out);
    show = true;
    passes(seed, left_out, false);
    printf("made smaller: %s\nagain: test_call_sequences %lu:%ld\n", told->text, first_seed, block);
}

static uint64_t seed_of(long block) { return mix(mix(first_seed, 0x5851F42D4C957F2Du), (uint64_t)block + 1); }

static void test_sequences(void **state)
{
    long made = 0, failed = 0, bad = 0;
    for (long block = 0; block * BLOCK < n_calls; block++) {
        bool left_out[BLOCK] = { false };
        bool fine = passes(seed_of(block), left_out, false);
        made += told->made, failed += told->failed;
        if (!fine) {
            tell(seed_of(block), block, left_out);
            show = false;
            bad++;
        }
        if (bad == 5)
            break;
    }
    printf("seed %lu: %ld calls, of which %ld failed as they should\n", first_seed, made + failed, failed);
    if (bad)
        fail_msg("%ld blocks failed", bad);
    assert_true(failed * 10 > made && made * 3 > failed); /* both kinds are there */
}

static bool takes_part(const char *name)
{
    for (int k = 0; k < sequence_n_ops; k++)
        if (sequence_ops[k].run && strcmp(sequence_ops[k].name, name) == 0)
            return true;
    for (int k = 0; k < sequence_n_functions; k++)
        if (strcmp(sequence_functions[k].name, name) == 0)
            return true;
    return false;
}

/* Functions of a header that no sequence calls. */
static int missing_of(const char *header, int *seen)
{
    const char *root = getenv("TREK_TEST_ROOT");
    char path[4096], line[512], name[64];
    snprintf(path, sizeof path, "%s/%s", root ? root : ".", header);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    int missing = 0;
    while (fgets(line, sizeof line, file)) {
        const char *open = strncmp(line, "TREK_API ", 9) == 0 ? strchr(line, '(') : NULL;
        const char *at = open;
        while (at && at > line && strncmp(at, "trek_", 5) != 0)
            at--;
        if (!open || sscanf(at, "trek_%63[a-z0-9_]", name) != 1)
            continue;
        ++*seen;
        if (!takes_part(name)) {
            printf("no sequence calls trek_%s\n", name);
            missing++;
        }
    }
    fclose(file);
    return missing;
}

static void test_all_functions_take_part(void **state)
{
    int seen = 0, missing = missing_of("autograd/ops.h", &seen) + missing_of("autograd/losses.h", &seen);
    assert_true(seen > 150);
    assert_int_equal(missing, 0);
}

static int one_block(const char *text)
{
    bool left_out[BLOCK] = { false };
    long block = 0;
    if (sscanf(text, "%lu:%ld", &first_seed, &block) != 2)
        return 2;
    show = true;
    bool fine = passes(seed_of(block), left_out, false);
    if (!fine) {
        show = false;
        tell(seed_of(block), block, left_out);
    }
    return !fine;
}

static bool map_board(void)
{
    told = mmap(NULL, sizeof *told, PROT_READ | PROT_WRITE, MAP_SHARED, board_file, 0);
    return told != MAP_FAILED;
}

int main(int argc, char **argv)
{
    const char *seed = argc > 1 ? argv[1] : getenv("TREK_SEQUENCE_SEED"),
        *calls = argc > 2 ? argv[2] : getenv("TREK_SEQUENCE_CALLS");
    const char *given = getenv("TREK_SEQUENCE_BOARD");
    if (given) {
        board_file = atoi(given);
        if (!map_board())
            return 2;
        show = getenv("TREK_SEQUENCE_SHOW") && getenv("TREK_SEQUENCE_SHOW")[0];
        run_block(told->seed, told->left_out);
        return told->text[0] != 0;
    }
    FILE *file = tmpfile();
    board_file = file ? fileno(file) : -1;
    if (!file || ftruncate(board_file, sizeof *told) != 0 || !map_board())
        return 2;
    if (seed && strchr(seed, ':'))
        return one_block(seed);
    first_seed = seed ? strtoul(seed, NULL, 10) : (unsigned long)test_seed();
    n_calls = calls ? strtol(calls, NULL, 10) : n_calls;
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_all_functions_take_part), cmocka_unit_test(test_sequences) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
