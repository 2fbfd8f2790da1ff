/* SPDX-License-Identifier: Apache-2.0 */
#include "tensor/fftw.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "tensor/cpu/products/blas.h"
#include "tensor/late.h"
#include "tensor/memory_internal.h"
#include "tensor/pool.h"
#include "tensor/status_internal.h"

/* FFTW: plans are made without measuring, for arrays that are aligned as its vectors need. */
enum { ESTIMATE = 1 << 6 };

typedef void *plan_real_fn(int n, void *from, void *to, unsigned flags);
typedef void *plan_fn(int n, void *from, void *to, int sign, unsigned flags);
typedef void execute_fn(void *plan, void *from, void *to);
typedef void destroy_fn(void *plan);

typedef struct transforms {
    plan_real_fn *real, *to_real;
    plan_fn *complex;
    execute_fn *run_real, *run_to_real, *run_complex;
    destroy_fn *destroy;
    bool usable;
} transforms;

static struct {
    transforms of[2]; /* f32, f64 */
    char why[300];
} fftw;

/* A plan takes as long as a short transform, often longer, so that the last ones are kept. */
typedef struct entry {
    bool wide;
    trek_dft kind;
    int n, users;
    uint64_t used; /* when it was last used */
    void *plan;    /* NULL: an empty entry */
} entry;
static struct {
    entry of[16];
    uint64_t now;
} kept;
static pthread_mutex_t planning = PTHREAD_MUTEX_INITIALIZER; /* guards the kept plans; FFTW also makes one plan at a time */

static bool find(void *library, const char *prefix, const char *name, void *to)
{
    char text[64];
    snprintf(text, sizeof text, "%s_%s", prefix, name);
    void *address = dlsym(library, text);
    memcpy(to, &address, sizeof address);
    return address != NULL;
}

static void open_one(int wide, const char *name)
{
    char why[200] = "it is none of FFTW's";
    const char *prefix = wide ? "fftw" : "fftwf";
    transforms *t = &fftw.of[wide];
    why[0] = 0;
    void *library = trek_blas_open_library(name, why, sizeof why);
    t->usable = library && find(library, prefix, "plan_dft_r2c_1d", &t->real) &&
        find(library, prefix, "plan_dft_c2r_1d", &t->to_real) && find(library, prefix, "plan_dft_1d", &t->complex) &&
        find(library, prefix, "execute_dft_r2c", &t->run_real) && find(library, prefix, "execute_dft_c2r", &t->run_to_real) &&
        find(library, prefix, "execute_dft", &t->run_complex) && find(library, prefix, "destroy_plan", &t->destroy);
    if (!t->usable && !fftw.why[0])
        snprintf(fftw.why, sizeof fftw.why, "%.90s: %.200s", name, why[0] ? why : "it has not FFTW's functions");
}

static void open_fftw(void)
{
    const char *name = trek_late_named("TREK_FFT");
    for (int wide = 0; wide < 2; wide++) {
        open_one(wide, name ? name : wide ? "libfftw3.so.3" : "libfftw3f.so.3");
        if (!fftw.of[wide].usable && !name)
            open_one(wide, "mkl");
    }
}

bool trek_fftw_there(const char *what, trek_dtype dtype)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, open_fftw);
    bool usable = fftw.of[dtype == TREK_F64].usable;
    if (!usable)
        trek_fail(TREK_ERR_UNSUPPORTED,
                  "%s: FFTW is missing: install libfftw3-single3 and libfftw3-double3, or name a library in TREK_FFT (%s)", what,
                  fftw.why);
    return usable;
}

/* Returns the numbers of a line, and of its transform. */
static int64_t numbers_from(trek_dft kind, int64_t n)
{
    return kind == TREK_DFT_REAL ? n : kind == TREK_DFT_TO_REAL ? 2 * (n / 2 + 1) : 2 * n;
}
static int64_t numbers_to(trek_dft kind, int64_t n)
{
    return kind == TREK_DFT_REAL ? 2 * (n / 2 + 1) : kind == TREK_DFT_TO_REAL ? n : 2 * n;
}
static int64_t aligned(int64_t bytes) { return (bytes + 63) / 64 * 64; }

/* Returns memory for a line and its transform, aligned for FFTW's vectors; NULL on failure. */
static char *scratch_of(bool wide, trek_dft kind, int64_t n, char **to)
{
    int64_t item = wide ? 8 : 4, first = aligned(item * numbers_from(kind, n));
    char *from = trek_block_alloc((size_t)(first + aligned(item * numbers_to(kind, n))));
    *to = from ? from + first : NULL;
    return from;
}

static void *make_plan(bool wide, trek_dft kind, int n)
{
    const transforms *t = &fftw.of[wide];
    char *to, *from = scratch_of(wide, kind, n, &to);
    void *plan = !from ? NULL
        : kind == TREK_DFT_REAL ? t->real(n, from, to, ESTIMATE)
        : kind == TREK_DFT_TO_REAL ? t->to_real(n, from, to, ESTIMATE)
        : t->complex(n, from, to, kind == TREK_DFT_FORWARD ? -1 : 1, ESTIMATE);
    trek_block_free(from);
    return plan;
}

/* Returns a kept plan, or a new one, which replaces the one that was not used for the longest time (own, if all are
 * in use). plan NULL: failure. */
static entry *take_plan(bool wide, trek_dft kind, int n, entry *own)
{
    pthread_mutex_lock(&planning);
    entry *place = NULL;
    for (size_t k = 0; k < sizeof kept.of / sizeof kept.of[0]; k++) {
        entry *e = &kept.of[k];
        if (e->plan && e->wide == wide && e->kind == kind && e->n == n) {
            place = e;
            goto found;
        }
        if (e->users == 0 && (!place || e->used < place->used))
            place = e;
    }
    if (!place)
        place = own;
    if (place->plan)
        fftw.of[place->wide].destroy(place->plan);
    *place = (entry){ .wide = wide, .kind = kind, .n = n, .plan = make_plan(wide, kind, n) };
found:
    place->users++;
    place->used = ++kept.now;
    pthread_mutex_unlock(&planning);
    return place;
}

static void give_plan(entry *e, const entry *own)
{
    pthread_mutex_lock(&planning);
    e->users--;
    if (e == own && e->plan)
        fftw.of[e->wide].destroy(e->plan);
    pthread_mutex_unlock(&planning);
}

typedef struct work {
    entry *e;
    execute_fn *run;
    char *from, *to;
    int64_t step_from, step_to; /* bytes of a line */
    atomic_bool failed;
} work;

static void run_lines(void *arg, int64_t begin, int64_t end)
{
    work *w = arg;
    char *to, *from = scratch_of(w->e->wide, w->e->kind, w->e->n, &to);
    if (!from)
        atomic_store(&w->failed, true);
    for (int64_t k = begin; from && k < end; k++) { /* the copies cost little of what vectors gain */
        memcpy(from, w->from + k * w->step_from, (size_t)w->step_from);
        w->run(w->e->plan, from, to);
        memcpy(w->to + k * w->step_to, to, (size_t)w->step_to);
    }
    trek_block_free(from);
}

trek_status trek_fftw_run(trek_dtype dtype, trek_dft kind, int n, int64_t lines, void *from, void *to)
{
    bool wide = dtype == TREK_F64;
    const transforms *t = &fftw.of[wide];
    int64_t item = wide ? 8 : 4;
    entry own = { 0 };
    work w = { .e = take_plan(wide, kind, n, &own), .from = from, .to = to };
    w.run = kind == TREK_DFT_REAL ? t->run_real : kind == TREK_DFT_TO_REAL ? t->run_to_real : t->run_complex;
    w.step_from = item * numbers_from(kind, n);
    w.step_to = item * numbers_to(kind, n);
    atomic_init(&w.failed, w.e->plan == NULL);
    if (w.e->plan)
        trek_parallel(lines, 1 + 4096 / n, run_lines, &w);
    give_plan(w.e, &own);
    if (!atomic_load(&w.failed))
        return TREK_OK;
    return trek_fail(TREK_ERR_MEMORY, "fft: out of memory for a plan, or a line, of %d numbers", n);
}
