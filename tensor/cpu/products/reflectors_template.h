/* SPDX-License-Identifier: Apache-2.0 */
/* Products and reflections in blocks for one real type: TREK_REAL is f32 or f64, REAL its type. Included by orthogonal.c. */

/* A matrix with any strides: element (i, j) is at[i * row + j * col]. */
typedef struct R(view) {
    REAL *at;
    int64_t row, col;
} R(view);

static inline R(view) R(from)(R(view) x, int64_t i, int64_t j)
{
    return (R(view)){ x.at + i * x.row + j * x.col, x.row, x.col };
}
static inline R(view) R(turned)(R(view) x) { return (R(view)){ x.at, x.col, x.row }; }
/* Returns the view of a matrix whose columns follow each other. */
static inline R(view) R(columns)(REAL *at, int64_t lead) { return (R(view)){ at, 1, lead }; }

/* Computes C = A B or C += A B for A [m, p], B [p, n]. Returns false without memory. */
static bool R(multiply)(int64_t m, int64_t n, int64_t p, R(view) a, R(view) b, bool add, R(view) c)
{
    if (m == 0 || n == 0 || (p == 0 && add))
        return true;
    trek_gemm g = { .m = m, .n = n, .k = p, .a = a.at, .a_row = a.row, .a_col = a.col, .b = b.at, .b_row = b.row,
                    .b_col = b.col };
    g.a_dtype = g.b_dtype = g.c_dtype = DTYPE;
    g.c = c.at, g.c_row = c.row, g.c_col = c.col;
    g.accumulate = add;
    const trek_gemm swapped = trek_gemm_swapped(&g);
    return trek_factors_product(DTYPE, c.col == 1 ? &g : &swapped) == TREK_OK;
}

/* Computes y = A x or y += A x for A [m, n]; x and y are contiguous. */
static bool R(times)(int64_t m, int64_t n, R(view) a, REAL *x, bool add, REAL *y)
{
    return R(multiply)(m, 1, n, a, R(columns)(x, n), add, R(columns)(y, m));
}

/* Copies row i of x with its sign changed, so that it can be the vector of a product. */
static REAL *R(minus_row)(R(view) x, int64_t i, int64_t n, REAL *to)
{
    for (int64_t j = 0; j < n; j++)
        to[j] = -x.at[i * x.row + j * x.col];
    return to;
}

/* Returns the sum of (x / unit)^2. */
static double R(squares)(int64_t n, const REAL *x, int64_t step, double unit)
{
    double sums[8] = { 0 }, by = 1 / unit;
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (int l = 0; l < 8; l++) {
            const double value = (double)x[(i + l) * step] * by;
            sums[l] += value * value;
        }
    for (; i < n; i++)
        sums[0] += ((double)x[i * step] * by) * ((double)x[i * step] * by);
    return ((sums[0] + sums[4]) + (sums[1] + sums[5])) + ((sums[2] + sums[6]) + (sums[3] + sums[7]));
}

/* Returns the largest magnitude, or NaN if there is one. */
static double R(largest)(int64_t n, const REAL *x, int64_t step)
{
    REAL largest = 0;
    for (int64_t i = 0; i < n; i++) {
        const REAL value = x[i * step] < 0 ? -x[i * step] : x[i * step];
        largest = value > largest || value != value ? value : largest;
    }
    return (double)largest;
}

/* Finds the reflection H = 1 - tau v v^T, v[0] = 1, for which H x is 0 but for its first element, which replaces x[0]; the rest
 * of x becomes that of v. Returns tau, which is 0 if x has this form already. Squares of f32 fit into f64; those of f64 are
 * formed of quotients where they could be too large or too small. */
static REAL R(reflector)(int64_t n, REAL *x, int64_t step)
{
    const double first = (double)x[0];
    double rest = R(squares)(n - 1, x + step, step, 1), unit = 1;
    if (rest == 0 && (sizeof(REAL) == 4 || R(largest)(n - 1, x + step, step) == 0))
        return 0;
    if (sizeof(REAL) == 8 && !(rest + first * first > 0x1p-900 && rest + first * first < 0x1p900)) {
        int power;
        frexp(R(largest)(n, x, step), &power);
        unit = ldexp(1, power < -1000 ? -1000 : power > 1000 ? 1000 : power);
        rest = R(squares)(n - 1, x + step, step, unit);
    }
    const double length = sqrt(rest + (first / unit) * (first / unit)), made = first > 0 ? -length : length;
    const double pivot = first / unit - made, by = 1 / (pivot * unit);
    const bool small = !(fabs(by) < 0x1p1000);
    for (int64_t i = 1; i < n; i++)
        x[i * step] = (REAL)(small ? (double)x[i * step] / unit / pivot : (double)x[i * step] * by);
    x[0] = (REAL)(made * unit);
    return (REAL)(pivot / -made);
}

/* Computes T [k, k] of H1 ... Hk = 1 - V T V^T from gram = V^T V, for upper T (Schreiber and Van Loan, SIAM J. Sci. Stat. Comput.
 * 1989). */
static void R(form_t)(int64_t k, const REAL *tau, const REAL *gram, REAL *t)
{
    for (int64_t j = 0; j < k; j++) {
        for (int64_t i = 0; i < k; i++)
            t[i + j * k] = 0;
        for (int64_t l = 0; l < j; l++)
            for (int64_t i = 0; i <= l; i++)
                t[i + j * k] -= t[i + l * k] * gram[l + j * k] * tau[j];
        t[j + j * k] = tau[j];
    }
}

/* Replaces C [m, n] by H1 ... Hk C, or by Hk ... H1 C (`backwards`). Column j of v [m, k] holds what R(reflector) has left of v
 * from row j on; what stands above is not read. Returns false without memory. */
static bool R(reflect)(bool backwards, int64_t m, int64_t k, R(view) v, const REAL *tau, int64_t n, R(view) c)
{
    if (m == 0 || n == 0 || k == 0)
        return true;
    REAL *clean = trek_block_alloc((size_t)(m * k + 2 * k * k + 2 * k * n) * sizeof *clean);
    if (!clean)
        return false;
    REAL *gram = clean + m * k, *t = gram + k * k, *inner = t + k * k, *outer = inner + k * n;
    for (int64_t j = 0; j < k; j++) {
        for (int64_t i = 0; i < j; i++)
            clean[i + j * m] = 0;
        clean[j + j * m] = 1;
        for (int64_t i = j + 1; i < m; i++)
            clean[i + j * m] = v.at[i * v.row + j * v.col];
    }
    const R(view) whole = R(columns)(clean, m), small = R(columns)(t, k);
    bool fine = k == 1 || R(multiply)(k, k, m, R(turned)(whole), whole, false, R(columns)(gram, k));
    if (fine)
        R(form_t)(k, tau, gram, t);
    fine = fine && R(multiply)(k, n, m, R(turned)(whole), c, false, R(columns)(inner, k)) &&
        R(multiply)(k, n, k, backwards ? R(turned)(small) : small, R(columns)(inner, k), false, R(columns)(outer, k));
    for (int64_t i = 0; fine && i < k * n; i++)
        outer[i] = -outer[i];
    fine = fine && R(multiply)(m, n, k, whole, R(columns)(outer, k), true, c);
    trek_block_free(clean);
    return fine;
}

/* Replaces C [m, n] by Q C for the reflections in v [m, k], block by block from the last one. Below its diagonal C may be known
 * to be 0: then the columns before those of a block remain so. */
static bool R(reflect_all)(int64_t m, int64_t k, R(view) v, const REAL *tau, int64_t n, bool upper, R(view) c)
{
    for (int64_t end = k, begin; end > 0; end = begin) {
        begin = (end - 1) / BLOCK * BLOCK;
        const int64_t first = upper ? begin : 0;
        if (!R(reflect)(false, m - begin, end - begin, R(from)(v, begin, begin), tau + begin, n - first,
                        R(from)(c, begin, first)))
            return false;
    }
    return true;
}

/* Factorises columns [0, n) of a by halves: R on and above the diagonal, reflections below it. */
static bool R(qr_panel)(int64_t m, int64_t n, R(view) a, REAL *tau)
{
    if (n == 1) {
        tau[0] = R(reflector)(m, a.at, a.row);
        return true;
    }
    const int64_t first = n / 2;
    return R(qr_panel)(m, first, a, tau) && R(reflect)(true, m, first, a, tau, n - first, R(from)(a, 0, first)) &&
        R(qr_panel)(m - first, n - first, R(from)(a, first, first), tau + first);
}

/* The same for m >= n, panel by panel. */
static bool R(qr_all)(int64_t m, int64_t n, R(view) a, REAL *tau)
{
    for (int64_t begin = 0, wide; begin < n; begin += wide) {
        wide = n - begin < BLOCK ? n - begin : BLOCK;
        const R(view) panel = R(from)(a, begin, begin);
        if (!R(qr_panel)(m - begin, wide, panel, tau + begin) ||
            !R(reflect)(true, m - begin, wide, panel, tau + begin, n - begin - wide, R(from)(panel, 0, wide)))
            return false;
    }
    return true;
}

/* Sets x [m, n] to 1 on the diagonal and 0 elsewhere. */
static void R(identity)(int64_t m, int64_t n, REAL *x)
{
    memset(x, 0, (size_t)(m * n) * sizeof *x);
    for (int64_t j = 0; j < m && j < n; j++)
        x[j + j * m] = 1;
}

static int R(qr)(int64_t m, int64_t n, REAL *a, REAL *r)
{
    REAL *q = trek_block_alloc((size_t)(m * n + n) * sizeof *q), *tau = q + m * n;
    const R(view) whole = R(columns)(a, m);
    bool fine = q && R(qr_all)(m, n, whole, tau);
    if (fine) {
        memset(r, 0, (size_t)(n * n) * sizeof *r);
        for (int64_t j = 0; j < n; j++)
            memcpy(r + j * n, a + j * m, (size_t)(j + 1) * sizeof *r);
        R(identity)(m, n, q);
        fine = R(reflect_all)(m, n, whole, tau, n, true, R(columns)(q, m));
    }
    if (fine)
        memcpy(a, q, (size_t)(m * n) * sizeof *a);
    trek_block_free(q);
    return fine ? 0 : -1;
}
