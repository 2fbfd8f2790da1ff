/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors whose memory comes and goes: what the system really has in memory, what is counted, what is zero, and what stays. */
#include "tensor/pages.h"

#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "autograd/ops.h"
#include "autograd/shapes.h"
#include "tensor/copies.h"
#include "tensor/creation.h"
#include "tensor/devices.h"
#include "tensor/dlpack.h"
#include "tensor/memory_account.h"
#include "tensor/op.h"
#include "tensor/spare_pages.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"

enum { PAGES = 40, MANY = 600 };

static size_t page_size(void) { return trek_pages_size(trek_cpu(0), NULL, 0); }

/* How many pages of a tensor have memory of their own, as the system says; -1: it does not say. */
static int resident(const trek_tensor *t)
{
    char line[256], begins[32];
    long kib = -1;
    bool there = false;
    FILE *file = fopen("/proc/self/smaps", "r");
    snprintf(begins, sizeof begins, "%lx-", (unsigned long)(uintptr_t)t->data);
    while (file && kib < 0 && fgets(line, sizeof line, file)) {
        there |= strncmp(line, begins, strlen(begins)) == 0;
        if (there)
            sscanf(line, "Rss: %ld", &kib);
    }
    if (file)
        fclose(file);
    return kib < 0 ? -1 : (int)((size_t)kib * 1024 / page_size());
}

/* Whether the system moves memory from one address to another. */
static bool moves_memory(void)
{
    size_t page = page_size();
    trek_spare_pages spare = { .n = 0 };
    trek_spare_pages_limit(&spare, page, TREK_SPARE_LEAST);
    char *from = mmap(NULL, TREK_SPARE_LEAST * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    bool moves = trek_spare_pages_put(&spare, from, TREK_SPARE_LEAST) > 0;
    trek_spare_pages_clear(&spare);
    munmap(from, TREK_SPARE_LEAST * page);
    return moves;
}

static trek_tensor *make(void)
{
    trek_tensor *t = trek_pages_zeros(trek_dims((int64_t)(PAGES * page_size() / sizeof(float))), TREK_F32, trek_cpu(0));
    assert_non_null(t);
    return t;
}

/* Any order of taking, writing, holding and giving back, against a model that knows each byte and each page. */
static void drawn_orders(void **state)
{
    size_t page = page_size(), bytes = PAGES * page;
    char *expected = calloc(bytes, 1);
    bool taken[PAGES] = { false }, held[PAGES] = { false };
    trek_tensor *t = make();
    trek_pages *pages = trek_pages_of(t);
    int looked = 0;
    for (uint32_t draw = 0; draw < 3000; draw++) {
        size_t begin = (size_t)((test_number(1, draw) + 1) / 2 * (double)(bytes - 1)),
               most = draw % 3 ? 4 * page : bytes, count = (size_t)((test_number(2, draw) + 1) / 2 * (double)most);
        count = count < bytes - begin ? count : bytes - begin;
        size_t first = begin / page, end = count ? (begin + count + page - 1) / page : first;
        switch (draw % 7) {
        case 0:
            trek_pages_hold(pages, t->data + begin, count);
            break;
        case 5:
            trek_pages_take_surely(pages, t->data + begin, count);
            break;
        case 1:
            trek_pages_release_holds(pages);
            memset(held, 0, sizeof held);
            break;
        case 2:
        case 3:
        case 4:
            trek_pages_give_back(pages, t->data + begin, count);
            memset(expected + begin, 0, count);
            for (size_t k = first; k < end; k++)
                taken[k] = taken[k] && (held[k] || k * page < begin || (k + 1) * page > begin + count);
            continue;
        default:
            assert_int_equal(trek_pages_take(pages, t->data + begin, count), TREK_OK);
            memset(t->data + begin, (int)(1 + draw % 100), count);
            memset(expected + begin, (int)(1 + draw % 100), count);
        }
        for (size_t k = first; k < end && draw % 7 != 1; k++) {
            taken[k] = true;
            held[k] |= draw % 7 == 0;
        }
        int n = 0;
        for (int k = 0; k < PAGES; k++)
            n += taken[k];
        assert_int_equal(trek_pages_taken(pages), n * (int64_t)page);
        int known = draw % 16 ? -1 : resident(t); /* taken pages that were not written have none */
        assert_true(known <= n);
        looked += known >= 0;
        size_t runs = 0;
        for (size_t at = 0, stop; trek_pages_next(pages, &at, &stop); at = stop)
            for (size_t k = at / page; k < stop / page; k++, runs++)
                assert_true(taken[k]);
        assert_int_equal(runs, n);
        assert_memory_equal(t->data, expected, bytes); /* reading takes nothing */
        assert_int_equal(trek_pages_taken(pages), n * (int64_t)page);
    }
    assert_true(looked > 0 || access("/proc/self/smaps", R_OK) != 0);
    trek_tensor_release(t);
    free(expected);
}

static void counted(void **state)
{
    size_t page = page_size();
    if (!trek_memory_account_counts())
        skip();
    trek_memory_account *account = trek_memory_account_new(1);
    assert_int_equal(trek_memory_account_join(account, 0), TREK_OK);
    trek_memory_account_begin(account, 0);
    trek_tensor *t = make();
    int64_t besides = trek_memory_account_used(account); /* the tensor's header */
    trek_pages *pages = trek_pages_of(t);
    int64_t all = trek_memory_usage(trek_cpu(0)).allocated;
    assert_int_equal(trek_pages_take(pages, t->data + 1, 2 * page), TREK_OK); /* of three */
    assert_int_equal(trek_memory_account_used(account), besides + 3 * (int64_t)page);
    assert_int_equal(trek_memory_usage(trek_cpu(0)).allocated, all + 3 * (int64_t)page);
    trek_memory_account_limit(account, besides + 5 * (int64_t)page);
    FAILS(trek_pages_take(pages, t->data + page, 5 * page), TREK_ERR_MEMORY, "exceed the budget");
    assert_int_equal(trek_pages_taken(pages), 3 * (int64_t)page);
    trek_pages_hold(pages, t->data + 10 * page, 4 * page); /* whatever the limit */
    assert_int_equal(trek_memory_account_used(account), besides + 7 * (int64_t)page);
    assert_int_equal(trek_memory_account_peak(account), besides + 7 * (int64_t)page);
    trek_pages_give_back(pages, t->data, PAGES * page);
    assert_int_equal(trek_memory_account_used(account), besides + 4 * (int64_t)page);
    trek_tensor_release(t);
    assert_int_equal(trek_memory_account_used(account), 0);
    trek_memory_account_leave();
    trek_memory_account_free(&account);
}

/* Any order, while some memory stays that was given back: what is taken is zeros all the same, what has stayed counts, and it is
 * never more than was allowed. */
static void spare_in_drawn_orders(void **state)
{
    size_t page = page_size(), bytes = MANY * page, limit = 0;
    if (!trek_memory_account_counts())
        skip();
    trek_memory_account *account = trek_memory_account_new(1);
    assert_int_equal(trek_memory_account_join(account, 0), TREK_OK);
    trek_memory_account_begin(account, 0);
    char *expected = calloc(bytes, 1);
    trek_tensor *t = trek_pages_zeros(trek_dims((int64_t)bytes), TREK_U8, trek_cpu(0));
    trek_pages *pages = trek_pages_of(t);
    int64_t besides = trek_memory_account_used(account);
    int stayed = 0;
    for (uint32_t draw = 0; draw < 3000; draw++) {
        size_t begin = (size_t)((test_number(1, draw) + 1) / 2 * (double)(bytes - 1)), count = (draw % 5 ? 60 : 300) * page;
        count = count < bytes - begin ? count : bytes - begin;
        if (draw % 11 == 0) {
            limit = draw % 3 ? draw % 7 * 50 * page : 0;
            trek_pages_keep_spare(pages, limit);
        } else if (draw % 2) {
            trek_pages_give_back(pages, t->data + begin, count);
            memset(expected + begin, 0, count);
        } else {
            assert_int_equal(trek_pages_take(pages, t->data + begin, count), TREK_OK);
            if (draw % 8) {
                memset(t->data + begin, (int)(draw % 255 + 1), count);
                memset(expected + begin, (int)(draw % 255 + 1), count);
            }
        }
        int64_t spare = trek_memory_account_used(account) - besides - trek_pages_taken(pages);
        assert_true(spare >= 0 && spare <= (int64_t)limit);
        stayed += spare > 0;
        if (draw % 4 == 0)
            assert_memory_equal(t->data, expected, bytes);
    }
    assert_memory_equal(t->data, expected, bytes);
    assert_true(stayed > 100 || !moves_memory());
    trek_tensor_release(t);
    assert_int_equal(trek_memory_account_used(account), 0);
    trek_memory_account_leave();
    trek_memory_account_free(&account);
    free(expected);
}

/* Takes half of the pages in two stretches, and gives them back, then the other half, and so on. Returns how often the system has
 * found memory. */
static long faults_of_halves(trek_tensor *t, int rounds)
{
    trek_pages *pages = trek_pages_of(t);
    size_t half = MANY / 2 * page_size();
    struct rusage before, after;
    getrusage(RUSAGE_THREAD, &before);
    for (int k = 0; k < rounds; k++) {
        char *from = t->data + (size_t)(k % 2) * half;
        size_t some = (size_t)(1 + k % 5) * (half / 6);
        assert_int_equal(trek_pages_take(pages, from, some), TREK_OK);
        assert_int_equal(trek_pages_take(pages, from + some, half - some), TREK_OK);
        assert_true(from[0] == 0 && from[half / 2] == 0 && from[half - 1] == 0);
        memset(from, k + 1, half);
        trek_pages_give_back(pages, from, half);
    }
    getrusage(RUSAGE_THREAD, &after);
    return after.ru_minflt - before.ru_minflt;
}

/* What stays is used again, without new memory from the system; within a budget that has room for it once. */
static void spare_is_used_again(void **state)
{
    enum { ROUNDS = 20 };
    size_t page = page_size();
    if (!moves_memory() || !trek_memory_account_counts())
        skip();
    trek_memory_account *account = trek_memory_account_new(1);
    assert_int_equal(trek_memory_account_join(account, 0), TREK_OK);
    trek_memory_account_begin(account, 0);
    trek_tensor *t = trek_pages_zeros(trek_dims((int64_t)(MANY * page)), TREK_U8, trek_cpu(0));
    trek_pages *pages = trek_pages_of(t);
    int64_t besides = trek_memory_account_used(account);
    trek_memory_account_limit(account, besides + MANY / 2 * (int64_t)page);
    assert_true(faults_of_halves(t, ROUNDS) >= ROUNDS * MANY / 2);
    trek_pages_keep_spare(pages, MANY / 2 * page);
    assert_true(faults_of_halves(t, ROUNDS) < MANY / 2 + 50); /* those of the first round */
    assert_int_equal(trek_memory_account_used(account), besides + MANY / 2 * (int64_t)page);
    trek_pages_keep_spare(pages, 100 * page); /* the rest is the system's */
    assert_int_equal(trek_memory_account_used(account), besides + 100 * (int64_t)page);
    FAILS(trek_pages_take(pages, t->data, (MANY / 2 + 1) * page), TREK_ERR_MEMORY, "exceed the budget");
    assert_int_equal(trek_memory_account_used(account), besides + 100 * (int64_t)page);
    SUCCEEDS(trek_pages_take(pages, t->data, MANY / 2 * page)); /* of which 100 were there */
    assert_int_equal(trek_memory_account_peak(account), besides + MANY / 2 * (int64_t)page);
    trek_tensor_release(t);
    assert_int_equal(trek_memory_account_used(account), 0);
    trek_memory_account_leave();
    trek_memory_account_free(&account);
}

/* The same of pages in a file: there is what is held, and what was taken while nothing stayed. Memory that stays is used again
 * outside of the file, which needs no new memory. */
static void spare_beside_a_file(void **state)
{
    enum { ROUNDS = 20 };
    size_t page = page_size(), bytes = MANY * page;
    bool held[MANY] = { false }, spare = false, shared = false;
    trek_tensor *t = trek_pages_zeros(trek_dims((int64_t)bytes), TREK_U8, trek_cpu(0));
    trek_pages *pages = trek_pages_of(t);
    char *expected = calloc(bytes, 1);
    int fd = memfd_create("trek-test", 0);
    assert_true(fd >= 0 && ftruncate(fd, (off_t)(bytes + page)) == 0);
    const char *view = mmap(NULL, bytes + page, PROT_READ, MAP_SHARED, fd, 0);
    for (uint32_t draw = 0; draw < 2000; draw++) {
        size_t begin = (size_t)((test_number(1, draw) + 1) / 2 * (double)(bytes - 1)), count = (draw % 5 ? 30 : 300) * page;
        count = count < bytes - begin ? count : bytes - begin;
        size_t first = begin / page, end = (begin + count + page - 1) / page;
        if (draw % 50 == 10) {
            SUCCEEDS(shared ? trek_pages_unshare(pages) : trek_pages_share(pages, fd, page));
            shared = !shared;
        } else if (draw % 13 == 0) {
            spare = !spare;
            trek_pages_keep_spare(pages, spare ? bytes / 2 : 0);
        } else if (draw % 41 == 0) {
            trek_pages_release_holds(pages);
            memset(held, 0, sizeof held);
        } else if (draw % 3 == 0) {
            trek_pages_give_back(pages, t->data + begin, count);
            memset(expected + begin, 0, count);
        } else {
            bool holds = draw % 7 == 1;
            bool surely = draw % 7 == 3;
            SUCCEEDS(holds ? trek_pages_hold(pages, t->data + begin, count)
                         : surely ? trek_pages_take_surely(pages, t->data + begin, count)
                                  : trek_pages_take(pages, t->data + begin, count));
            for (size_t k = first; k < end && holds; k++)
                held[k] = true;
            memset(t->data + begin, (int)(draw % 255 + 1), count);
            memset(expected + begin, (int)(draw % 255 + 1), count);
            assert_true(!shared || !surely || memcmp(view + page + begin, expected + begin, count) == 0);
        }
        for (size_t k = 0; k < MANY && shared && draw % 4 == 0; k++)
            assert_true(!held[k] || memcmp(view + (k + 1) * page, expected + k * page, page) == 0);
        if (draw % 4 == 0)
            assert_memory_equal(t->data, expected, bytes);
    }
    trek_pages_release_holds(pages);
    trek_pages_give_back(pages, t->data, bytes);
    SUCCEEDS(trek_pages_share(pages, fd, page));
    trek_pages_keep_spare(pages, bytes / 2);
    faults_of_halves(t, 2); /* new memory, and what a sanitizer keeps about it */
    assert_true(faults_of_halves(t, ROUNDS) < MANY / 2 || !moves_memory());
    SUCCEEDS(trek_pages_unshare(pages));
    munmap((void *)(uintptr_t)view, bytes + page);
    trek_tensor_release(t);
    close(fd);
    free(expected);
}

/* Parts of it are in pages, too, and other tensors are not; one without elements works. */
static void parts(void **state)
{
    trek_tensor *t = make(), *part = trek_tensor_make_part(t, 3 * page_size(), trek_dims(10, 10), TREK_F32),
                *other = trek_tensor_ones(trek_dims(3), TREK_F32, trek_cpu(0)),
                *none = trek_pages_zeros(trek_dims(0), TREK_F64, trek_cpu(0));
    assert_ptr_equal(trek_pages_of(part), trek_pages_of(t));
    assert_null(trek_pages_of(other));
    assert_int_equal(trek_tensor_take_pages(other), TREK_OK);
    assert_int_equal(trek_tensor_take_pages(part), TREK_OK);
    assert_int_equal(trek_pages_taken(trek_pages_of(t)), page_size());
    assert_int_equal(trek_tensor_take_pages(none), TREK_OK);
    assert_int_equal(trek_pages_taken(trek_pages_of(none)), 0);
    trek_pages_give_back(trek_pages_of(none), none->data, 0);
    trek_tensor_release(t); /* the part keeps it */
    *(float *)(void *)part->data = 3;
    trek_tensor_release(part);
    trek_tensor_release(other);
    trek_tensor_release(none);
}

/* What a keeper was asked. */
typedef struct asked {
    trek_pages *pages;
    char *data;
    int reads, writes, firsts, leaves;
    uint64_t use;
    bool refuses;
} asked;

static trek_status read_kept(void *arg, const void *from, size_t bytes, uint64_t use, bool first)
{
    asked *a = arg;
    a->reads++;
    a->firsts += first;
    a->use = use;
    if (a->refuses)
        return trek_fail(TREK_ERR_STATE, "no values");
    trek_pages_take_surely(a->pages, from, bytes);
    for (size_t k = 0; k < bytes / sizeof(float); k++)
        ((float *)(uintptr_t)from)[k] = (float)((const char *)from - a->data) / sizeof(float) + (float)k;
    return TREK_OK;
}

static trek_status write_kept(void *arg, const void *from, size_t bytes, uint64_t use, bool first)
{
    asked *a = arg;
    a->writes++;
    a->firsts += first;
    trek_pages_take_surely(a->pages, from, bytes);
    return a->refuses ? trek_fail(TREK_ERR_STATE, "no writing") : TREK_OK;
}

static void leave_kept(void *arg) { ((asked *)arg)->leaves++; }

/* Ops ask for exactly what they read and write, also within others, and views for nothing; everything else that could read gets
 * values by an op, or is refused. */
static void kept(void **state)
{
    trek_tensor *t = make(), *part = trek_tensor_make_part(t, page_size(), trek_dims(3, 4), TREK_F32), *turned, *sum;
    asked a = { .pages = trek_pages_of(t), .data = t->data };
    trek_pages_keeper keeper = { read_kept, write_kept, leave_kept, &a };
    double first = (double)page_size() / sizeof(float), numbers[12], item;
    assert_false(trek_tensor_is_kept(part));
    trek_pages_set_keeper(a.pages, &keeper);
    assert_true(trek_tensor_is_kept(part) && trek_pages_kept == 1);
    turned = trek_tensor_transpose(part, 0, 1);
    assert_true(a.reads == 0 && turned->storage == part->storage);
    sum = trek_tensor_add(turned, turned);
    assert_true(a.reads == 2 && a.firsts == 1 && a.leaves == 1);
    trek_tensor_release(sum);
    trek_pages_give_back(a.pages, t->data, PAGES * page_size());
    assert_int_equal(trek_tensor_to_host(turned, TREK_F64, numbers, sizeof numbers), TREK_OK);
    for (int k = 0; k < 12; k++)
        assert_true(numbers[k] == first + 4 * (k % 3) + k / 3);
    trek_pages_give_back(a.pages, t->data, PAGES * page_size());
    trek_tensor *one = trek_tensor_make_part(t, 8, trek_dims(1), TREK_F32);
    assert_true(trek_tensor_item(one) == 2);
    REFUSED(trek_tensor_data(part), TREK_ERR_STATE, "tensor_data: tensor: it is divided");
    REFUSED(trek_tensor_to_dlpack(part), TREK_ERR_STATE, "tensor_to_dlpack: tensor: it is divided");
    int writes = a.writes;
    assert_int_equal(trek_tensor_copy_from(one, one), TREK_OK);
    assert_int_equal(a.writes, writes + 1);
    a.refuses = true;
    REFUSED(trek_tensor_clone(part), TREK_ERR_STATE, "no values");
    FAILS(trek_tensor_to_host(part, TREK_F32, numbers, 12 * sizeof(float)), TREK_ERR_STATE, "no values");
    item = trek_tensor_item(one);
    assert_true(isnan(item));
    expect_error(TREK_ERR_STATE, "no values");
    assert_int_equal(a.firsts, a.leaves);
    trek_pages_set_keeper(a.pages, NULL);
    assert_true(trek_pages_kept == 0 && trek_tensor_data(part));
    for (int k = 0; k < 4; k++)
        trek_tensor_release((trek_tensor *[]){ turned, part, one, t }[k]);
}

static int pages_of_file(int fd)
{
    struct stat about;
    assert_int_equal(fstat(fd, &about), 0);
    return (int)((size_t)about.st_blocks * 512 / page_size());
}

/* Another view of the file has the values of the pages while they lie in it, and those of that time when they have left it. The
 * file has as many pages as have memory. */
static void in_a_file(void **state)
{
    size_t page = page_size(), bytes = MANY * page;
    trek_tensor *t = trek_pages_zeros(trek_dims((int64_t)bytes), TREK_U8, trek_cpu(0));
    trek_pages *pages = trek_pages_of(t);
    char *expected = calloc(bytes, 1), *then = calloc(bytes, 1);
    int fd = memfd_create("trek-test", 0), closed = open("/dev/null", O_RDONLY);
    assert_true(fd >= 0 && ftruncate(fd, (off_t)(bytes + page)) == 0);
    const char *view = mmap(NULL, bytes + page, PROT_READ, MAP_SHARED, fd, 0);
    bool shared = false, ever = false;
    assert_true(view != MAP_FAILED && trek_pages_bytes(pages) == bytes && trek_pages_memory(pages) == t->data);
    for (uint32_t draw = 0; draw < 600; draw++) {
        size_t begin = (size_t)((test_number(1, draw) + 1) / 2 * (double)(bytes - 1)), count = (draw % 3 ? 4 : 300) * page;
        count = count < bytes - begin ? count : bytes - begin;
        if (draw % 20 == 7 && !shared && trek_pages_taken(pages) > 0) { /* it stays where it was */
            FAILS(trek_pages_share(pages, closed, 0), TREK_ERR_MEMORY, "out of memory");
        } else if (draw % 20 == 9) {
            assert_int_equal(shared ? trek_pages_unshare(pages) : trek_pages_share(pages, fd, page), TREK_OK);
            shared = !shared;
            ever = true;
            if (shared) /* comparing, below, takes some more */
                assert_int_equal(pages_of_file(fd), trek_pages_taken(pages) / (int64_t)page);
        } else if (draw % 4 == 0) {
            trek_pages_give_back(pages, t->data + begin, count);
            memset(expected + begin, 0, count);
        } else {
            assert_int_equal(trek_pages_take(pages, t->data + begin, count), TREK_OK);
            memset(t->data + begin, (int)(draw % 255 + 1), count);
            memset(expected + begin, (int)(draw % 255 + 1), count);
        }
        if (shared)
            memcpy(then, expected, bytes);
        if (ever)
            assert_memory_equal(view + page, then, bytes);
        assert_memory_equal(t->data, expected, bytes);
    }
    assert_true(ever);
    munmap((void *)(uintptr_t)view, bytes + page);
    trek_tensor_release(t);
    close(closed);
    close(fd);
    free(expected);
    free(then);
}

/* On a GPU: what is taken is zeros, whatever its memory held before; memory that was given back is used by other pages at once,
 * while work that has used it may still be waiting; what the device says it has is what is taken. */
static void on_a_gpu(void **state)
{
    if (test_on_cpu())
        skip();
    trek_device device = test_device();
    enum { EACH = 3 };
    size_t page = trek_pages_size(device, NULL, 0);
    int64_t before = trek_memory_usage(device).allocated, each = (int64_t)(EACH * page / sizeof(float));
    assert_true(page > 0);
    for (int guarded = 0; guarded < 2; guarded++) {
        trek_pages_guard = guarded;
        trek_scope scope = trek_scope_begin();
        trek_tensor *t = trek_pages_zeros(trek_dims(PAGES / EACH, each), TREK_F32, device);
        trek_var *all = trek_var_from(t), *sums[PAGES / EACH];
        trek_pages *pages = trek_pages_of(t);
        assert_int_equal(trek_pages_taken(pages), 0);
        for (int round = 0; round < 3; round++)
            for (int64_t k = 0; k < PAGES / EACH; k++) { /* each row in the memory of the one before */
                trek_var *row = trek_select(all, 0, k);
                sums[k] = trek_sum(row, trek_dims_all(), false); /* takes it */
                assert_int_equal(trek_pages_taken(pages), (int64_t)(EACH * page));
                assert_true(trek_memory_usage(device).allocated - before >= (int64_t)(EACH * page));
                trek_tensor *full = trek_tensor_full(trek_dims(each), (double)(k + 1), TREK_F32, device);
                SUCCEEDS(trek_tensor_copy_from(trek_var_data(row), full));
                trek_tensor_release(full);
                trek_var *filled = trek_sum(row, trek_dims_all(), false);
                trek_pages_give_back(pages, trek_var_data(row)->data, EACH * page);
                assert_true(trek_var_item(sums[k]) == 0);
                assert_true(trek_var_item(filled) == (double)((k + 1) * each));
            }
        assert_int_equal(trek_pages_taken(pages), 0);
        trek_scope_end(scope);
        trek_device_sync(device);
        assert_int_equal(trek_memory_usage(device).allocated, before);
    }
    trek_pages_guard = false;
}

/* A GPU that has no more: nothing is taken, and what there was stays. */
static void gpu_without_memory(void **state)
{
    void (*fail_calls)(const char *) = NULL;
    void *found = test_fake("trek_fake_fail");
    if (!found)
        skip();
    memcpy(&fail_calls, &found, sizeof found);
    trek_device device = test_device();
    size_t page = trek_pages_size(device, NULL, 0);
    trek_tensor *t = trek_pages_zeros(trek_dims((int64_t)(8 * page / sizeof(float))), TREK_F32, device);
    trek_pages *pages = trek_pages_of(t);
    SUCCEEDS(trek_pages_take(pages, t->data + 2 * page, page));
    static const char *const failures[] = { "cuMemCreate:3+", "cuMemMap:2+" };
    for (int k = 0; k < 2; k++) {
        fail_calls(failures[k]);
        FAILS(trek_pages_take(pages, t->data, 8 * page), k ? TREK_ERR_CUDA : TREK_ERR_MEMORY, k ? "cuMemMap" : "out of memory");
        fail_calls(NULL);
        assert_int_equal(trek_pages_taken(pages), (int64_t)page);
    }
    SUCCEEDS(trek_pages_take(pages, t->data, 8 * page));
    assert_int_equal(trek_pages_taken(pages), (int64_t)(8 * page));
    trek_tensor_release(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(drawn_orders), cmocka_unit_test(counted),
                                        cmocka_unit_test(spare_in_drawn_orders), cmocka_unit_test(spare_is_used_again),
                                        cmocka_unit_test(spare_beside_a_file),
                                        cmocka_unit_test(parts),
                                        cmocka_unit_test(kept), cmocka_unit_test(in_a_file), cmocka_unit_test(on_a_gpu),
                                        cmocka_unit_test(gpu_without_memory) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
