/* SPDX-License-Identifier: Apache-2.0 */
/* The factorisations of factors.h for one real type: TREK_REAL is f32 or f64, REAL its type. Element (i, j) of a matrix without
 * strides of its own is at a[i + j * lda]. */
#define JOIN_(name, real) name##_##real
#define JOIN(name, real) JOIN_(name, real)
#define R(name) JOIN(name, TREK_REAL)

/* Computes C -= A B for A [m, p], B [p, n], with any strides. Returns false without memory. */
static bool R(subtract)(int64_t m, int64_t n, int64_t p, const REAL *a, int64_t a_row, int64_t a_col, const REAL *b,
                        int64_t b_row,
                        int64_t b_col, REAL *c, int64_t c_row, int64_t c_col)
{
    if (m == 0 || n == 0 || p == 0)
        return true;
    const bool left = m <= n; /* the smaller operand is copied with its sign changed */
    const int64_t rows = left ? m : p, cols = left ? p : n, row = left ? a_row : b_row, col = left ? a_col : b_col;
    const REAL *from = left ? a : b;
    REAL *minus = trek_block_alloc((size_t)(rows * cols) * sizeof *minus);
    if (!minus)
        return false;
    for (int64_t j = 0; j < cols; j++)
        for (int64_t i = 0; i < rows; i++)
            minus[i + j * rows] = -from[i * row + j * col];
    trek_gemm g = { .m = m, .n = n, .k = p, .a = a, .a_row = a_row, .a_col = a_col, .b = b, .b_row = b_row, .b_col = b_col };
    if (left)
        g.a = minus, g.a_row = 1, g.a_col = rows;
    else
        g.b = minus, g.b_row = 1, g.b_col = rows;
    g.a_dtype = g.b_dtype = g.c_dtype = sizeof(REAL) == 8 ? TREK_F64 : TREK_F32;
    g.c = c, g.c_row = c_row, g.c_col = c_col;
    g.accumulate = true;
    const trek_gemm turned = trek_gemm_swapped(&g);
    bool fine = trek_factors_product(g.c_dtype, c_col == 1 ? &g : &turned) == TREK_OK;
    trek_block_free(minus);
    return fine;
}

/* Solves a triangle of few rows, from the first or from the last one. */
static void R(triangular_rows)(bool upper, bool unit, int64_t n, int64_t k, const REAL *a, int64_t a_row, int64_t a_col, REAL *b,
                               int64_t b_row, int64_t b_col)
{
    for (int64_t s = 0; s < n; s++) {
        int64_t i = upper ? n - 1 - s : s, begin = upper ? 0 : i + 1, end = upper ? i : n;
        const REAL pivot = a[i * a_row + i * a_col];
        for (int64_t j = 0; j < k && !unit; j++)
            b[i * b_row + j * b_col] /= pivot;
        if (b_col == 1) {
            for (int64_t r = begin; r < end; r++) {
                const REAL factor = a[r * a_row + i * a_col];
                for (int64_t j = 0; j < k; j++)
                    b[r * b_row + j] -= factor * b[i * b_row + j];
            }
            continue;
        }
        for (int64_t j = 0; j < k; j++) {
            REAL *column = b + j * b_col, x = column[i * b_row];
            for (int64_t r = begin; r < end; r++)
                column[r * b_row] -= a[r * a_row + i * a_col] * x;
        }
    }
}

/* Replaces B [n, k] by the solution of A X = B for a triangle of A. Returns false without memory. */
static bool R(triangular)(bool upper, bool unit, int64_t n, int64_t k, const REAL *a, int64_t a_row, int64_t a_col, REAL *b,
                          int64_t b_row, int64_t b_col)
{
    if (n <= FEW_ROWS) {
        R(triangular_rows)(upper, unit, n, k, a, a_row, a_col, b, b_row, b_col);
        return true;
    }
    const int64_t first = half_of(n, FEW_ROWS), second = n - first;
    const REAL *last = a + first * (a_row + a_col);
    if (upper)
        return R(triangular)(true, unit, second, k, last, a_row, a_col, b + first * b_row, b_row, b_col) &&
            R(subtract)(first, k, second, a + first * a_col, a_row, a_col, b + first * b_row, b_row, b_col, b, b_row, b_col) &&
            R(triangular)(true, unit, first, k, a, a_row, a_col, b, b_row, b_col);
    return R(triangular)(false, unit, first, k, a, a_row, a_col, b, b_row, b_col) &&
        R(subtract)(second, k, first, a + first * a_row, a_row, a_col, b, b_row, b_col, b + first * b_row, b_row, b_col) &&
        R(triangular)(false, unit, second, k, last, a_row, a_col, b + first * b_row, b_row, b_col);
}

/* Exchanges rows of a [.., n] as `count` pivots say, which count from 1. */
static void R(exchange)(REAL *a, int64_t lda, int64_t n, const int *pivots, int64_t count)
{
    for (int64_t j = 0; j < n; j++, a += lda)
        for (int64_t r = 0; r < count; r++) {
            REAL kept = a[r];
            a[r] = a[pivots[r] - 1];
            a[pivots[r] - 1] = kept;
        }
}

/* Factorises column by column. */
static int R(lu_columns)(int64_t m, int64_t n, REAL *a, int64_t lda, int *pivots)
{
    int info = 0;
    for (int64_t s = 0; s < m && s < n; s++) {
        REAL *column = a + s * lda;
        int64_t best = s;
        for (int64_t i = s + 1; i < m; i++)
            if (fabs((double)column[i]) > fabs((double)column[best]))
                best = i;
        pivots[s] = (int)(best + 1);
        if (column[best] == 0) {
            info = info ? info : (int)(s + 1);
            continue;
        }
        for (int64_t j = 0; j < n && best != s; j++) {
            REAL kept = a[s + j * lda];
            a[s + j * lda] = a[best + j * lda];
            a[best + j * lda] = kept;
        }
        const REAL pivot = column[s];
        for (int64_t i = s + 1; i < m; i++)
            column[i] /= pivot;
        for (int64_t j = s + 1; j < n; j++) {
            REAL *to = a + j * lda;
            const REAL factor = to[s];
            for (int64_t i = s + 1; i < m; i++)
                to[i] -= column[i] * factor;
        }
    }
    return info;
}

static int R(lu)(int64_t m, int64_t n, REAL *a, int64_t lda, int *pivots)
{
    const int64_t least = m < n ? m : n;
    if (least <= FEW_COLUMNS)
        return R(lu_columns)(m, n, a, lda, pivots);
    const int64_t first = half_of(least, FEW_COLUMNS), rest = n - first;
    REAL *right = a + first * lda, *below = a + first;
    int info = R(lu)(m, first, a, lda, pivots);
    if (info < 0)
        return info;
    R(exchange)(right, lda, rest, pivots, first);
    if (!R(triangular)(false, true, first, rest, a, 1, lda, right, 1, lda) ||
        !R(subtract)(m - first, rest, first, below, 1, lda, right, 1, lda, right + first, 1, lda))
        return -1;
    int later = R(lu)(m - first, rest, right + first, lda, pivots + first);
    if (later < 0)
        return later;
    R(exchange)(below, lda, first, pivots + first, least - first);
    for (int64_t r = first; r < least; r++)
        pivots[r] += (int)first;
    return info ? info : later ? later + (int)first : 0;
}

/* Subtracts A A^T of A [n, p] from the lower half of C [n, n]. Returns false without memory. */
static bool R(subtract_square)(int64_t n, int64_t p, const REAL *a, int64_t lda, REAL *c, int64_t ldc)
{
    if (n <= FEW_SQUARE)
        return R(subtract)(n, n, p, a, 1, lda, a, lda, 1, c, 1, ldc);
    const int64_t first = half_of(n, FEW_ROWS), second = n - first;
    return R(subtract_square)(first, p, a, lda, c, ldc) &&
        R(subtract)(second, first, p, a + first, 1, lda, a, lda, 1, c + first, 1, ldc) &&
        R(subtract_square)(second, p, a + first, lda, c + first * (ldc + 1), ldc);
}

static int R(cholesky_columns)(int64_t n, REAL *a, int64_t lda)
{
    for (int64_t s = 0; s < n; s++) {
        REAL *column = a + s * lda;
        if (!(column[s] > 0))
            return (int)(s + 1);
        const REAL root = (REAL)sqrt((double)column[s]);
        column[s] = root;
        for (int64_t i = s + 1; i < n; i++)
            column[i] /= root;
        for (int64_t j = s + 1; j < n; j++) {
            REAL *to = a + j * lda;
            for (int64_t i = j; i < n; i++)
                to[i] -= column[i] * column[j];
        }
    }
    return 0;
}

static int R(cholesky)(int64_t n, REAL *a, int64_t lda)
{
    if (n <= FEW_ROWS)
        return R(cholesky_columns)(n, a, lda);
    const int64_t first = half_of(n, FEW_ROWS), second = n - first;
    REAL *below = a + first, *last = a + first * (lda + 1);
    int info = R(cholesky)(first, a, lda);
    if (info != 0)
        return info;
    /* L21 L11^T = A21: as L11 L21^T = A21^T */
    if (!R(triangular)(false, false, first, second, a, 1, lda, below, lda, 1) ||
        !R(subtract_square)(second, first, below, lda, last, lda))
        return -1;
    info = R(cholesky)(second, last, lda);
    return info > 0 ? info + (int)first : info;
}

#undef JOIN_
#undef JOIN
#undef R
