/* SPDX-License-Identifier: Apache-2.0 */
/* Singular values for one real type. Included by orthogonal.c. */

/* --- to two diagonals (Dongarra, Sorensen and Hammarling, J. Comput. Appl. Math. 1989) --- */

/* What is made of a matrix [m, n], m >= n: two diagonals, and the factors of the reflections from the left and from the right. */
typedef struct R(bidiagonal) {
    REAL *diagonal, *off, *left, *right;
} R(bidiagonal);

/* Changes the signs of n numbers. */
static void R(negate)(int64_t n, REAL *x)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = -x[i];
}
static void R(scale)(int64_t n, REAL factor, REAL *x)
{
    for (int64_t i = 0; i < n; i++)
        x[i] *= factor;
}

/* Makes column i, and column i of Y. */
static bool R(bidiagonal_column)(int64_t m, int64_t n, int64_t i, R(view) a, R(view) x, R(view) y, R(bidiagonal) to, REAL *spare)
{
    REAL *v = R(from)(a, i, i).at, *made = R(from)(y, i + 1, i).at;
    const int64_t rows = m - i, rest = n - i - 1;
    for (int64_t j = 0; j < i; j++)
        spare[j] = -a.at[j + i * a.col];
    if (!R(times)(rows, i, R(from)(x, i, 0), spare, true, v) ||
        !R(times)(rows, i, R(from)(a, i, 0), R(minus_row)(y, i, i, spare), true, v))
        return false;
    to.left[i] = R(reflector)(rows, v, 1);
    to.diagonal[i] = v[0];
    v[0] = 1;
    bool fine = R(times)(rest, rows, R(turned)(R(from)(a, i, i + 1)), v, false, made) &&
        R(times)(i, rows, R(turned)(R(from)(a, i, 0)), v, false, spare);
    R(negate)(i, spare);
    fine = fine && R(times)(rest, i, R(from)(y, i + 1, 0), spare, true, made) &&
        R(times)(i, rows, R(turned)(R(from)(x, i, 0)), v, false, spare);
    R(negate)(i, spare);
    fine = fine && R(times)(rest, i, R(turned)(R(from)(a, 0, i + 1)), spare, true, made);
    R(scale)(rest, to.left[i], made);
    return fine;
}

/* Makes row i, and column i of X; `row` is a copy of it. */
static bool R(bidiagonal_row)(int64_t m, int64_t n, int64_t i, R(view) a, R(view) x, R(view) y, R(bidiagonal) to, REAL *spare,
                              REAL *row)
{
    REAL *made = R(from)(x, i + 1, i).at;
    const int64_t below = m - i - 1, rest = n - i - 1;
    R(negate)(rest, R(minus_row)(R(from)(a, i, i + 1), 0, rest, row));
    if (!R(times)(rest, i + 1, R(from)(y, i + 1, 0), R(minus_row)(a, i, i + 1, spare), true, row) ||
        !R(times)(rest, i, R(turned)(R(from)(a, 0, i + 1)), R(minus_row)(x, i, i, spare), true, row))
        return false;
    to.right[i] = R(reflector)(rest, row, 1);
    to.off[i] = row[0];
    row[0] = 1;
    for (int64_t j = 0; j < rest; j++)
        a.at[i + (i + 1 + j) * a.col] = row[j];
    bool fine = R(times)(below, rest, R(from)(a, i + 1, i + 1), row, false, made) &&
        R(times)(i + 1, rest, R(turned)(R(from)(y, i + 1, 0)), row, false, spare);
    R(negate)(i + 1, spare);
    fine = fine && R(times)(below, i + 1, R(from)(a, i + 1, 0), spare, true, made) &&
        R(times)(i, rest, R(from)(a, 0, i + 1), row, false, spare);
    R(negate)(i, spare);
    fine = fine && R(times)(below, i, R(from)(x, i + 1, 0), spare, true, made);
    R(scale)(below, to.right[i], made);
    return fine;
}

/* Makes two diagonals of a [m, n], m >= n, which keeps the reflections: those from the left below the first one, those from the
 * right beside the second one. */
static bool R(make_bidiagonal)(int64_t m, int64_t n, REAL *a, R(bidiagonal) to)
{
    REAL *work = trek_block_alloc((size_t)((m + n) * (NARROW + 1) + NARROW) * sizeof *work);
    bool fine = work;
    for (int64_t begin = 0, wide; fine && begin < n; begin += wide) {
        const int64_t rows = m - begin, cols = n - begin;
        wide = cols < NARROW ? cols : NARROW;
        const R(view) panel = R(columns)(a + begin * (m + 1), m), x = R(columns)(work, rows),
            y = R(columns)(work + rows * wide, cols);
        REAL *row = work + (rows + cols) * wide, *spare = row + cols;
        const R(bidiagonal) here = { to.diagonal + begin, to.off + begin, to.left + begin, to.right + begin };
        for (int64_t i = 0; fine && i < wide; i++)
            fine = R(bidiagonal_column)(rows, cols, i, panel, x, y, here, spare) &&
                (i + 1 == cols || R(bidiagonal_row)(rows, cols, i, panel, x, y, here, spare, row));
        R(negate)((rows + cols) * wide, work);
        const R(view) rest = R(from)(panel, wide, wide);
        fine = fine && R(multiply)(rows - wide, cols - wide, wide, R(from)(panel, wide, 0), R(turned)(R(from)(y, wide, 0)), true,
                                   rest) &&
            R(multiply)(rows - wide, cols - wide, wide, R(from)(x, wide, 0), R(from)(panel, 0, wide), true, rest);
    }
    trek_block_free(work);
    return fine;
}

/* --- vectors of two diagonals: divide and conquer (Gu and Eisenstat, SIAM J. Matrix Anal. Appl. 1995) --- */

typedef struct R(parts) {
    const trek_orthogonal_routines *lapack;
    int64_t lead; /* of u and of vt */
    REAL *work;   /* 3 n n + 4 n */
    int *places;  /* 4 n */
} R(parts);

/* What joins two parts of nl and nr rows with the row between them. */
typedef struct R(seam) {
    int64_t nl, nr, m; /* m: columns of all */
    int64_t k;
    REAL *d, *z, *poles;
    R(view) u, vt, u2, vt2, q;
    const int *gathered, *kinds;
} R(seam);

/* Replaces the differences in u and sums in vt by the vectors of the joined problem: left ones in q, what right ones are made of
 * in vt. */
static void R(seam_vectors)(const R(seam) *s, const REAL *signs)
{
    const int64_t k = s->k;
    REAL *z = s->z, *poles = s->poles;
    for (int64_t i = 0; i < k; i++)
        z[i] = s->u.at[i + (k - 1) * s->u.col] * s->vt.at[i + (k - 1) * s->vt.col];
    for (int64_t j = 0; j < k - 1; j++) {
        const REAL *u = s->u.at + j * s->u.col, *v = s->vt.at + j * s->vt.col;
        for (int64_t i = 0; i <= j; i++)
            z[i] *= u[i] * v[i] / (poles[i] - poles[j + 1]) / (poles[i] + poles[j + 1]);
        for (int64_t i = j + 1; i < k; i++)
            z[i] *= u[i] * v[i] / (poles[i] - poles[j]) / (poles[i] + poles[j]);
    }
    for (int64_t i = 0; i < k; i++)
        z[i] = (REAL)copysign(sqrt(fabs((double)z[i])), (double)signs[i]);
    for (int64_t j = 0; j < k; j++) {
        REAL *u = s->u.at + j * s->u.col, *v = s->vt.at + j * s->vt.col, *q = s->q.at + j * s->q.col;
        double sum = 1;
        v[0] = z[0] / u[0] / v[0];
        u[0] = -1;
        for (int64_t i = 1; i < k; i++) {
            v[i] = z[i] / u[i] / v[i];
            u[i] = poles[i] * v[i];
            sum += (double)u[i] * (double)u[i];
        }
        const double length = sqrt(sum);
        for (int64_t i = 0; i < k; i++)
            q[i] = (REAL)((double)u[i == 0 ? 0 : s->gathered[i] - 1] / length);
    }
}

/* Multiplies the left vectors of both parts, which LAPACK has gathered in u2, by those of the joined problem. */
static bool R(left_vectors)(const R(seam) *s)
{
    if (s->k == 2)
        return R(multiply)(s->nl + s->nr + 1, 2, 2, s->u2, s->q, false, s->u);
    const int64_t k = s->k, nl = s->nl, first = s->kinds[0], third = s->kinds[2], low = 1 + first;
    for (int64_t j = 0; j < k; j++)
        s->u.at[nl + j * s->u.col] = s->q.at[j * s->q.col];
    return R(multiply)(nl, k, first, R(from)(s->u2, 0, 1), R(from)(s->q, 1, 0), false, s->u) &&
        R(multiply)(nl, k, third, R(from)(s->u2, 0, low + s->kinds[1]), R(from)(s->q, low + s->kinds[1], 0), true, s->u) &&
        R(multiply)(s->nr, k, s->kinds[1] + third, R(from)(s->u2, nl + 1, low), R(from)(s->q, low, 0), false,
                    R(from)(s->u, nl + 1, 0));
}

/* Gathers the right vectors in q, and multiplies those of both parts, which are in vt2, by them. */
static bool R(right_vectors)(const R(seam) *s)
{
    const int64_t k = s->k, nl = s->nl, first = s->kinds[0], last = 1 + first + s->kinds[1];
    for (int64_t j = 0; j < k; j++) {
        const REAL *v = s->vt.at + j * s->vt.col;
        double sum = 0;
        for (int64_t i = 0; i < k; i++)
            sum += (double)v[i] * (double)v[i];
        const double length = sqrt(sum);
        for (int64_t i = 0; i < k; i++)
            s->q.at[j + i * s->q.col] = (REAL)((double)v[i == 0 ? 0 : s->gathered[i] - 1] / length);
    }
    if (k == 2)
        return R(multiply)(2, s->m, 2, s->q, s->vt2, false, s->vt);
    if (!R(multiply)(k, nl + 1, 1 + first, s->q, s->vt2, false, s->vt) ||
        !R(multiply)(k, nl + 1, s->kinds[2], R(from)(s->q, 0, last), R(from)(s->vt2, last, 0), true, s->vt))
        return false;
    for (int64_t j = 0; first > 0 && j < k; j++) /* the first row belongs to both parts, and comes before the second one's */
        s->q.at[j + first * s->q.col] = s->q.at[j];
    for (int64_t j = nl + 1; first > 0 && j < s->m; j++)
        s->vt2.at[first + j * s->vt2.col] = s->vt2.at[j * s->vt2.col];
    return R(multiply)(k, s->m - nl - 1, 1 + s->kinds[1] + s->kinds[2], R(from)(s->q, 0, first), R(from)(s->vt2, first, nl + 1),
                       false,
                       R(from)(s->vt, 0, nl + 1));
}

/* Finds the values of the joined problem and its vectors. */
static int R(solve_seam)(const R(parts) *h, R(seam) *s, REAL *signs)
{
    int size = (int)s->k, info = 0;
    REAL *z = s->z;
    const int64_t k = s->k, n = s->nl + s->nr + 1;
    if (k == 1) {
        s->d[0] = (REAL)fabs((double)z[0]);
        for (int64_t j = 0; j < s->m; j++)
            s->vt.at[j * s->vt.col] = s->vt2.at[j * s->vt2.col];
        for (int64_t i = 0; i < n; i++)
            s->u.at[i] = z[0] > 0 ? s->u2.at[i] : -s->u2.at[i];
        return 0;
    }
    double sum = 0;
    for (int64_t i = 0; i < k; i++) {
        signs[i] = z[i];
        sum += (double)z[i] * (double)z[i];
    }
    const REAL square = (REAL)sum;
    for (int64_t i = 0; i < k; i++)
        z[i] = (REAL)((double)z[i] / sqrt(sum));
    for (int j = 1; j <= size && info == 0; j++)
        h->lapack->lasd4(&size, &j, s->poles, z, s->u.at + (j - 1) * s->u.col, &square, s->d + j - 1,
                         s->vt.at + (j - 1) * s->vt.col,
                         &info);
    if (info != 0)
        return info;
    R(seam_vectors)(s, signs);
    return R(left_vectors)(s) && R(right_vectors)(s) ? 0 : -1;
}

/* Joins two parts and the row (alpha, beta) between them: d has their values, u and vt their vectors, order what sorts each. */
static int R(join_parts)(const R(parts) *h, int64_t nl, int64_t nr, int sqre, REAL *d, REAL alpha, REAL beta, R(view) u,
                         R(view) vt,
                         int *order)
{
    const int64_t n = nl + nr + 1, m = n + sqre;
    REAL *z = h->work, *poles = z + m, *u2 = poles + n, *vt2 = u2 + n * n, *q = vt2 + m * m, *signs = q + n * n;
    int *index = h->places, *gathered = index + n, *kinds = gathered + n, *packed = kinds + n;
    int k = 0, upper = (int)nl, lower = (int)nr, lead = (int)h->lead, size = (int)n, wide = (int)m, info = 0, up = 1, down = -1;
    double largest = fmax(fabs((double)alpha), fabs((double)beta));
    d[nl] = 0;
    for (int64_t i = 0; i < n; i++)
        largest = fmax(largest, fabs((double)d[i]));
    const REAL scale = (REAL)largest;
    for (int64_t i = 0; i < n; i++)
        d[i] /= scale;
    alpha /= scale;
    beta /= scale;
    h->lapack->lasd2(&upper, &lower, &sqre, &k, d, z, &alpha, &beta, u.at, &lead, vt.at, &lead, poles, u2, &size, vt2, &wide,
                     packed,
                     index, gathered, order, kinds, &info);
    R(seam) s = { .nl = nl, .nr = nr, .m = m, .k = k, .d = d, .z = z, .poles = poles, .u = u, .vt = vt, .u2 = R(columns)(u2, n),
                  .vt2 = R(columns)(vt2, m), .q = R(columns)(q, k), .gathered = gathered, .kinds = kinds };
    info = info ? info : R(solve_seam)(h, &s, signs);
    for (int64_t i = 0; i < n; i++)
        d[i] *= scale;
    int rest = size - k;
    if (info == 0)
        h->lapack->lamrg(&k, &rest, d, &up, &down, order);
    return info;
}

/* Computes values, u [n, n] and vt [m, m] of an upper bidiagonal matrix [n, m], m = n + sqre. */
static int R(conquer_parts)(const R(parts) *h, int64_t n, int sqre, REAL *d, REAL *off, R(view) u, R(view) vt, int *order)
{
    if (n <= FEW_VALUES) {
        int size = (int)n, wide = size + sqre, none = 0, lead = (int)h->lead, info = 0;
        h->lapack->lasdq("U", &sqre, &size, &wide, &size, &none, d, off, vt.at, &lead, u.at, &lead, u.at, &lead, h->work, &info,
                         1);
        for (int i = 0; i < size; i++)
            order[i] = i + 1;
        R(sort_order)(n, d, order); /* they may come in descending order */
        return info;
    }
    const int64_t nl = n / 2, nr = n - nl - 1, next = nl + 1;
    const REAL alpha = d[nl], beta = off[nl];
    int info = R(conquer_parts)(h, nl, 1, d, off, u, vt, order);
    if (info == 0)
        info = R(conquer_parts)(h, nr, sqre, d + next, off + next, R(from)(u, next, next), R(from)(vt, next, next), order + next);
    return info == 0 ? R(join_parts)(h, nl, nr, sqre, d, alpha, beta, u, vt, order) : info;
}

/* Computes the values in descending order, u [n, n] and vt [n, n] of an upper bidiagonal matrix whose largest element is 1. */
static int R(bidiagonal_vectors)(const trek_orthogonal_routines *lapack, int64_t n, R(bidiagonal) b, REAL *values, REAL *u,
                                 REAL *vt)
{
    const REAL least = (REAL)(sizeof(REAL) == 8 ? 0.9 * 0x1p-53 : 0.9 * 0x1p-24);
    REAL *made = trek_block_alloc((size_t)(5 * n * n + 8 * n) * sizeof *made), *left = made + n * n;
    int *places = trek_block_alloc((size_t)(5 * n) * sizeof *places), info = -1;
    if (made && places) {
        const R(parts) h = { .lapack = lapack, .lead = n, .work = left + n * n, .places = places };
        int *order = places + 4 * n;
        for (int64_t i = 0; i < n; i++) /* LAPACK's routines need values that are not 0 */
            if (fabs((double)b.diagonal[i]) < (double)least)
                b.diagonal[i] = b.diagonal[i] < 0 ? -least : least;
        R(identity)(n, n, made);
        R(identity)(n, n, left);
        info = R(conquer_parts)(&h, n, 0, b.diagonal, b.off, R(columns)(left, n), R(columns)(made, n), order);
        if (info == 0)
            R(sort_order)(n, b.diagonal, order);
        for (int64_t j = 0; info == 0 && j < n; j++) {
            const int64_t from = order[n - 1 - j] - 1;
            values[j] = b.diagonal[from];
            memcpy(u + j * n, left + from * n, (size_t)n * sizeof *u);
            for (int64_t i = 0; i < n; i++)
                vt[j + i * n] = made[from + i * n];
        }
    }
    trek_block_free(made);
    trek_block_free(places);
    return info;
}

/* --- all of it --- */

static int R(only_values)(const trek_orthogonal_routines *lapack, int64_t n, R(bidiagonal) b, REAL *values)
{
    int size = (int)n, none = 0, one = 1, info = 0;
    REAL *work = trek_block_alloc((size_t)(4 * n + 1) * sizeof *work), unused;
    if (!work)
        return -1;
    lapack->lasdq("U", &none, &size, &none, &none, &none, b.diagonal, b.off, &unused, &one, &unused, &one, &unused, &one, work,
                  &info,
                  1);
    const bool ascending = b.diagonal[0] < b.diagonal[n - 1];
    for (int64_t i = 0; i < n; i++)
        values[i] = b.diagonal[ascending ? n - 1 - i : i];
    trek_block_free(work);
    return info;
}

/* Computes the values and, unless u.at is NULL, vectors of a [m, n], m >= n, which is made bidiagonal. */
static int R(svd_square)(const trek_orthogonal_routines *lapack, int64_t m, int64_t n, REAL *a, R(view) u, REAL *values,
                         R(view) vh)
{
    REAL *made = trek_block_alloc((size_t)(4 * n + (u.at ? 2 * n * n + m * n : 0)) * sizeof *made);
    if (!made)
        return -1;
    const R(bidiagonal) b = { made, made + n, made + 2 * n, made + 3 * n };
    REAL *left = made + 4 * n, *vt = left + n * n, *all = vt + n * n;
    int info = R(make_bidiagonal)(m, n, a, b) ? 0 : -1;
    const REAL largest = info == 0 ? R(scaled)(n, b.diagonal, b.off) : 0;
    if (info == 0 && !(largest - largest == 0)) {
        info = 1; /* infinities or NaN */
    } else if (info == 0 && !u.at) {
        info = R(only_values)(lapack, n, b, values);
    } else if (info == 0) {
        const R(view) whole = R(columns)(a, m);
        info = R(bidiagonal_vectors)(lapack, n, b, values, left, vt);
        memset(all, 0, (size_t)(m * n) * sizeof *all);
        for (int64_t j = 0; j < n; j++)
            memcpy(all + j * m, left + j * n, (size_t)n * sizeof *all);
        if (info == 0 && (!R(reflect_all)(m, n, whole, b.left, n, false, R(columns)(all, m)) ||
                          !R(reflect_all)(n - 1, n - 1, R(from)(R(turned)(whole), 1, 0), b.right, n, false,
                                          R(from)(R(turned)(R(columns)(vt, n)), 1, 0))))
            info = -1;
        for (int64_t j = 0; info == 0 && j < n; j++) {
            for (int64_t i = 0; i < m; i++)
                u.at[i * u.row + j * u.col] = all[i + j * m];
            for (int64_t i = 0; i < n; i++)
                vh.at[i * vh.row + j * vh.col] = vt[i + j * n];
        }
    }
    for (int64_t i = 0; info == 0 && i < n; i++)
        values[i] *= largest;
    trek_block_free(made);
    return info;
}

/* The same where m is much larger than n: of the factor R of a. */
static int R(svd_tall)(const trek_orthogonal_routines *lapack, int64_t m, int64_t n, REAL *a, R(view) u, REAL *values, R(view) vh)
{
    REAL *r = trek_block_alloc((size_t)(2 * n * n + n + (u.at ? m * n : 0)) * sizeof *r);
    if (!r)
        return -1;
    REAL *tau = r + n * n, *inner = tau + n, *all = inner + n * n;
    int info = R(qr_all)(m, n, R(columns)(a, m), tau) ? 0 : -1;
    for (int64_t j = 0; j < n; j++)
        for (int64_t i = 0; i < n; i++)
            r[i + j * n] = i <= j ? a[i + j * m] : 0;
    if (info == 0)
        info = R(svd_square)(lapack, n, n, r, u.at ? R(columns)(inner, n) : u, values, vh);
    if (info == 0 && u.at) {
        memset(all, 0, (size_t)(m * n) * sizeof *all);
        for (int64_t j = 0; j < n; j++)
            memcpy(all + j * m, inner + j * n, (size_t)n * sizeof *all);
        info = R(reflect_all)(m, n, R(columns)(a, m), tau, n, false, R(columns)(all, m)) ? 0 : -1;
        for (int64_t j = 0; info == 0 && j < n; j++)
            for (int64_t i = 0; i < m; i++)
                u.at[i * u.row + j * u.col] = all[i + j * m];
    }
    trek_block_free(r);
    return info;
}

static int R(svd_of)(const trek_orthogonal_routines *lapack, int64_t m, int64_t n, REAL *a, R(view) u, REAL *values, R(view) vh)
{
    return (m > n + n / 2 ? R(svd_tall) : R(svd_square))(lapack, m, n, a, u, values, vh);
}

static int R(svd)(const trek_orthogonal_routines *lapack, int64_t m, int64_t n, REAL *a, REAL *u, REAL *s, REAL *vh)
{
    if (m >= n)
        return R(svd_of)(lapack, m, n, a, R(columns)(u, m), s, R(columns)(vh, n));
    REAL *other = trek_block_alloc((size_t)(m * n) * sizeof *other); /* A^T = V S U^T */
    for (int64_t j = 0; other && j < n; j++)
        for (int64_t i = 0; i < m; i++)
            other[j + i * n] = a[i + j * m];
    int info = other ? R(svd_of)(lapack, n, m, other, R(turned)(R(columns)(vh, m)), s, R(turned)(R(columns)(u, m))) : -1;
    trek_block_free(other);
    return info;
}
