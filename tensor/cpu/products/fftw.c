/* SPDX-License-Identifier: Apache-2.0 */
#include "tensor/fftw.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "tensor/cpu/products/blas.h"
#include "tensor/pool.h"
#include "tensor/status_internal.h"

/* FFTW's: plans are made without looking at numbers, for arrays that lie anywhere, which stay as they are. */
enum { ESTIMATE = 1 << 6, UNALIGNED = 1 << 1, PRESERVE = 1 << 4, FLAGS = ESTIMATE | UNALIGNED | PRESERVE };

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
static pthread_mutex_t planning = PTHREAD_MUTEX_INITIALIZER; /* FFTW makes one plan at a time */

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
    const char *name = getenv("TREK_FFT");
    for (int wide = 0; wide < 2; wide++) {
        open_one(wide, name && *name ? name : wide ? "libfftw3.so.3" : "libfftw3f.so.3");
        if (!fftw.of[wide].usable && !(name && *name))
            open_one(wide, "mkl");
    }
}

bool trek_fftw_there(const char *what, trek_dtype dtype)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, open_fftw);
    bool usable = fftw.of[dtype == TREK_F64].usable;
    if (!usable)
        trek_fail(TREK_ERR_UNSUPPORTED, "%s: it needs FFTW: install libfftw3-single3 and libfftw3-double3, or name a library in "
                  "TREK_FFT (%s)", what, fftw.why);
    return usable;
}

typedef struct work {
    execute_fn *run;
    void *plan;
    char *from, *to;
    int64_t step_from, step_to; /* bytes of a line */
} work;

static void run_lines(void *arg, int64_t begin, int64_t end)
{
    const work *w = arg;
    for (int64_t k = begin; k < end; k++)
        w->run(w->plan, w->from + k * w->step_from, w->to + k * w->step_to);
}

trek_status trek_fftw_run(trek_dtype dtype, trek_dft kind, int n, int64_t lines, void *from, void *to)
{
    const transforms *t = &fftw.of[dtype == TREK_F64];
    int64_t item = dtype == TREK_F64 ? 8 : 4, half = 2 * ((int64_t)n / 2 + 1);
    work w = { .from = from, .to = to };
    pthread_mutex_lock(&planning);
    w.plan = kind == TREK_DFT_REAL ? t->real(n, from, to, FLAGS)
        : kind == TREK_DFT_TO_REAL ? t->to_real(n, from, to, FLAGS)
        : t->complex(n, from, to, kind == TREK_DFT_FORWARD ? -1 : 1, FLAGS);
    pthread_mutex_unlock(&planning);
    if (!w.plan)
        return trek_fail(TREK_ERR_MEMORY, "fft: FFTW has no plan for %d numbers", n);
    w.run = kind == TREK_DFT_REAL ? t->run_real : kind == TREK_DFT_TO_REAL ? t->run_to_real : t->run_complex;
    w.step_from = item * (kind == TREK_DFT_REAL ? n : kind == TREK_DFT_TO_REAL ? half : 2 * (int64_t)n);
    w.step_to = item * (kind == TREK_DFT_REAL ? half : kind == TREK_DFT_TO_REAL ? n : 2 * (int64_t)n);
    int64_t grain = 1 + 4096 / n;
    trek_parallel(lines, grain, run_lines, &w);
    pthread_mutex_lock(&planning);
    t->destroy(w.plan);
    pthread_mutex_unlock(&planning);
    return TREK_OK;
}
