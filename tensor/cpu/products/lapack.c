/* SPDX-License-Identifier: Apache-2.0 */
#include "tensor/lapack.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "tensor/cpu/products/blas.h"
#include "tensor/cpu/products/factors.h"
#include "tensor/cpu/products/orthogonal.h"
#include "tensor/late.h"
#include "tensor/memory_internal.h"
#include "tensor/status_internal.h"

/* Fortran's calling convention: all arguments by address, lengths of texts after all others. */
typedef void gesv_fn(const int *n, const int *k, void *a, const int *lda, int *pivots, void *b, const int *ldb, int *info);
typedef void getrf_fn(const int *m, const int *n, void *a, const int *lda, int *pivots, int *info);
typedef void potrf_fn(const char *half, const int *n, void *a, const int *lda, int *info, size_t length);
typedef void trsm_fn(const char *side, const char *half, const char *turned, const char *unit, const int *n, const int *k,
                     const void *alpha, const void *a, const int *lda, void *b, const int *ldb, size_t l1, size_t l2, size_t l3,
                     size_t l4);
typedef void geqrf_fn(const int *m, const int *n, void *a, const int *lda, void *tau, void *work, const int *lwork, int *info);
typedef void orgqr_fn(const int *m, const int *n, const int *k, void *a, const int *lda, const void *tau, void *work,
                      const int *lwork, int *info);
typedef void gesdd_fn(const char *job, const int *m, const int *n, void *a, const int *lda, void *s, void *u, const int *ldu,
                      void *vh, const int *ldvh, void *work, const int *lwork, int *iwork, int *info, size_t length);
typedef void syevd_fn(const char *job, const char *half, const int *n, void *a, const int *lda, void *values, void *work,
                      const int *lwork, int *iwork, const int *liwork, int *info, size_t l1, size_t l2);

/* The routines of one precision. */
typedef struct routines {
    gesv_fn *gesv;
    getrf_fn *getrf;
    potrf_fn *potrf;
    trsm_fn *trsm;
    geqrf_fn *geqrf;
    orgqr_fn *orgqr;
    gesdd_fn *gesdd;
    syevd_fn *syevd;
} routines;

static struct {
    routines of[2]; /* f32, f64 */
    trek_orthogonal_routines parts[2]; /* likewise */
    bool usable;
    bool reference; /* it multiplies slowly: what can be made of products is computed by factors.c and orthogonal.c */
    bool divides;   /* it has all of `parts` */
    char why[300];
} lapack;

static const routines *of(trek_dtype dtype) { return &lapack.of[dtype == TREK_F64]; }
static const trek_orthogonal_routines *parts(trek_dtype dtype) { return &lapack.parts[dtype == TREK_F64]; }
static size_t size_of(trek_dtype dtype) { return dtype == TREK_F64 ? sizeof(double) : sizeof(float); }

/* --- opening ----------------------------------------------------------------------------------- */

/* Finds `count` routines of one precision. */
static bool find(void *library, char precision, const char *const *names, size_t count, void **addresses)
{
    bool found = true;
    for (size_t i = 0; i < count; i++) {
        char name[16];
        snprintf(name, sizeof name, "%c%s_", precision, names[i]);
        addresses[i] = dlsym(library, name);
        found = found && addresses[i];
    }
    return found;
}

static bool find_all(void *library)
{
    static const char *const names[] = { "gesv", "getrf", "potrf", "trsm", "geqrf", "orgqr", "gesdd", "syevd" };
    static const char *const inner[] = { "steqr", "sterf", "laed2", "laed4", "lamrg", "lasdq", "lasd2", "lasd4" };
    bool found = true;
    lapack.divides = true;
    for (int k = 0; k < 2; k++) {
        void *addresses[8];
        _Static_assert(sizeof addresses == sizeof lapack.of[0] && sizeof addresses == sizeof lapack.parts[0],
                       "one address a routine");
        found = find(library, "sd"[k], names, 8, addresses) && found;
        memcpy(&lapack.of[k], addresses, sizeof addresses);
        lapack.divides = find(library, "sd"[k], inner, 8, addresses) && lapack.divides;
        memcpy(&lapack.parts[k], addresses, sizeof addresses);
    }
    return found;
}

/* Tests 3 x = 6 and 3 x = 12 in both precisions: libraries with 64-bit integers, and those that are not LAPACK, fail
 * here. */
static bool computes(void)
{
    float a32[4] = { 3, 0, 0, 3 }, b32[2] = { 6, 12 };
    double a64[4] = { 3, 0, 0, 3 }, b64[2] = { 6, 12 };
    int pivots[4] = { 0 };
    return trek_lapack_solve(TREK_F32, 2, 1, a32, pivots, b32) == 0 && b32[0] == 2 && b32[1] == 4 && pivots[1] == 2 &&
           trek_lapack_solve(TREK_F64, 2, 1, a64, pivots, b64) == 0 && b64[0] == 2 && b64[1] == 4;
}

static void open_one(const char *name)
{
    char why[200] = "";
    bool known = false;
    void *library = trek_blas_open_library(name, why, sizeof why);
    const char *problem = library ? trek_blas_quiet(library, "", &known) : why;
    if (!problem && !find_all(library))
        problem = "it has no LAPACK";
    if (!problem && !computes())
        problem = "a small system is solved wrongly";
    lapack.usable = !problem;
    lapack.reference = !known;
    if (problem && !lapack.why[0])
        snprintf(lapack.why, sizeof lapack.why, "%.90s: %.200s", name, problem);
    if (!problem)
        trek_log_message(TREK_LOG_LEVEL_INFO, "matrices are factorised by %.200s", name);
}

static void open_lapack(void)
{
    static const char *const known[] = { "liblapack.so.3", "openblas", "mkl", "liblapack.so" };
    const char *name = trek_late_named("TREK_LAPACK");
    if (name) {
        open_one(name);
        return;
    }
    for (size_t k = 0; k < sizeof known / sizeof *known && !lapack.usable; k++)
        open_one(known[k]);
}

bool trek_lapack_there(const char *what)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, open_lapack);
    if (!lapack.usable)
        trek_fail(TREK_ERR_UNSUPPORTED,
                  "%s: LAPACK is missing: install liblapack3 or libopenblas0-pthread, or name a library in TREK_LAPACK (%s)",
                  what, lapack.why);
    return lapack.usable;
}

/* --- factorisations ------------------------------------------------------------------------------ */

int trek_lapack_solve(trek_dtype dtype, int n, int k, void *a, int *pivots, void *b)
{
    if (lapack.reference)
        return trek_factors_solve(dtype, n, k, a, pivots, b);
    int info = 0;
    of(dtype)->gesv(&n, &k, a, &n, pivots, b, &n, &info);
    return info;
}

int trek_lapack_lu(trek_dtype dtype, int m, int n, void *a, int *pivots)
{
    if (lapack.reference)
        return trek_factors_lu(dtype, m, n, a, m, pivots);
    int info = 0;
    of(dtype)->getrf(&m, &n, a, &m, pivots, &info);
    return info;
}

int trek_lapack_cholesky(trek_dtype dtype, int n, void *a)
{
    if (lapack.reference)
        return trek_factors_cholesky(dtype, n, a, n);
    int info = 0;
    of(dtype)->potrf("L", &n, a, &n, &info, 1);
    return info;
}

int trek_lapack_triangular(trek_dtype dtype, bool upper, bool unit, int n, int k, const void *a, void *b)
{
    if (lapack.reference)
        return trek_factors_triangular(dtype, upper, unit, n, k, a, n, b, n);
    const double one = 1;
    const float one32 = 1;
    of(dtype)->trsm("L", upper ? "U" : "L", "N", unit ? "U" : "N", &n, &k, dtype == TREK_F64 ? (const void *)&one : &one32, a, &n,
                    b, &n, 1, 1, 1, 1);
    return 0;
}

/* Returns whether a matrix is large enough that trek's own products make up for the reference's fewer instructions: measured. */
static bool by_products(int m, int n, int64_t least) { return lapack.reference && lapack.divides && (int64_t)m * n >= least; }

/* Returns the size that a routine asked for. */
static int asked(trek_dtype dtype, const void *work)
{
    double size = dtype == TREK_F64 ? *(const double *)work : (double)*(const float *)work;
    return (int)(size * 1.0000002) + 1; /* f32 may have rounded it down */
}

int trek_lapack_qr(trek_dtype dtype, int m, int n, void *a, void *r)
{
    if (by_products(m, n, 1400))
        return trek_orthogonal_qr(dtype, m, n, a, r);
    const routines *l = of(dtype);
    size_t size = size_of(dtype);
    double best[2];
    int info = 0, ask = -1;
    l->geqrf(&m, &n, a, &m, best, best, &ask, &info);
    int lwork = asked(dtype, best);
    l->orgqr(&m, &n, &n, a, &m, best, best + 1, &ask, &info);
    lwork = asked(dtype, best + 1) > lwork ? asked(dtype, best + 1) : lwork;
    char *work = trek_alloc(((size_t)lwork + (size_t)n) * size);
    if (!work)
        return -1;
    char *tau = work + (size_t)lwork * size;
    l->geqrf(&m, &n, a, &m, tau, work, &lwork, &info);
    memset(r, 0, (size_t)n * (size_t)n * size);
    for (int j = 0; j < n; j++)
        memcpy((char *)r + (size_t)j * (size_t)n * size, (char *)a + (size_t)j * (size_t)m * size, ((size_t)j + 1) * size);
    if (info == 0)
        l->orgqr(&m, &n, &n, a, &m, tau, work, &lwork, &info);
    trek_free(work);
    return info;
}

int trek_lapack_svd(trek_dtype dtype, int m, int n, void *a, void *u, void *s, void *vh)
{
    if (by_products(m, n, u ? 1000 : 3000))
        return trek_orthogonal_svd(parts(dtype), dtype, m, n, a, u, s, vh);
    const char *job = u ? "S" : "N";
    double best, none;
    int info = 0, ask = -1, k = m < n ? m : n, one_number, ldvh = u ? k : 1;
    u = u ? u : &none;
    vh = vh ? vh : &none;
    of(dtype)->gesdd(job, &m, &n, a, &m, s, u, &m, vh, &ldvh, &best, &ask, &one_number, &info, 1);
    int lwork = info == 0 ? asked(dtype, &best) : 0;
    void *work = trek_alloc((size_t)lwork * size_of(dtype));
    int *iwork = trek_alloc(8 * (size_t)k * sizeof *iwork);
    if (work && iwork && info == 0)
        of(dtype)->gesdd(job, &m, &n, a, &m, s, u, &m, vh, &ldvh, work, &lwork, iwork, &info, 1);
    info = work && iwork ? info : -1;
    trek_free(work);
    trek_free(iwork);
    return info;
}

int trek_lapack_eigh(trek_dtype dtype, int n, bool vectors, void *a, void *values)
{
    if (by_products(n, n, vectors ? 1000 : 1400))
        return trek_orthogonal_eigh(parts(dtype), dtype, n, vectors, a, values);
    const char *job = vectors ? "V" : "N";
    double best;
    int info = 0, ask = -1, integers;
    of(dtype)->syevd(job, "L", &n, a, &n, values, &best, &ask, &integers, &ask, &info, 1, 1);
    int lwork = info == 0 ? asked(dtype, &best) : 0, liwork = info == 0 ? integers : 0;
    void *work = trek_alloc((size_t)lwork * size_of(dtype));
    int *iwork = trek_alloc((size_t)liwork * sizeof *iwork);
    if (work && iwork && info == 0)
        of(dtype)->syevd(job, "L", &n, a, &n, values, work, &lwork, iwork, &liwork, &info, 1, 1);
    info = work && iwork ? info : -1;
    trek_free(work);
    trek_free(iwork);
    return info;
}
