/* SPDX-License-Identifier: Apache-2.0 */
/* Eigenvalues of symmetric matrices for one real type. Included by orthogonal.c. */

/* Computes column i of the panel that R(tridiagonal_panel) makes; row has space for 2 n. */
static bool R(tridiagonal_column)(int64_t n, int64_t i, R(view) a, R(view) w, REAL *off, REAL *tau, REAL *row)
{
    REAL *column = R(from)(a, i, i).at, *to = R(from)(w, i + 1, i).at, *v = column + 1;
    const int64_t below = n - i - 1;
    const R(view) vs = R(from)(a, i + 1, 0), ws = R(from)(w, i + 1, 0);
    if (!R(times)(n - i, i, R(from)(a, i, 0), R(minus_row)(w, i, i, row), true, column) ||
        !R(times)(n - i, i, R(from)(w, i, 0), R(minus_row)(a, i, i, row), true, column))
        return false;
    tau[i] = R(reflector)(below, v, 1);
    off[i] = v[0];
    v[0] = 1;
    /* w = tau (A v - V (W^T v) - W (V^T v)), less what makes it orthogonal to v */
    bool fine = R(times)(below, below, R(turned)(R(from)(a, i + 1, i + 1)), v, false, to) &&
        R(times)(i, below, R(turned)(ws), v, false, row) && R(times)(i, below, R(turned)(vs), v, false, row + n);
    for (int64_t j = 0; j < i; j++)
        row[j] = -row[j], row[n + j] = -row[n + j];
    fine = fine && R(times)(below, i, vs, row, true, to) && R(times)(below, i, ws, row + n, true, to);
    double along = 0;
    for (int64_t j = 0; j < below; j++) {
        to[j] *= tau[i];
        along += (double)to[j] * (double)v[j];
    }
    const REAL less = (REAL)(-0.5 * (double)tau[i] * along);
    for (int64_t j = 0; j < below; j++)
        to[j] += less * v[j];
    return fine;
}

/* Makes the first columns of a tridiagonal: `wide` reflections, and W with which the rest becomes A - V W^T - W V^T (Dongarra,
 * Sorensen and Hammarling, J. Comput. Appl. Math. 1989). Both halves of A are kept, so that its products read rows as they are.
 */
static bool R(tridiagonal_panel)(int64_t n, int64_t wide, R(view) a, REAL *diagonal, REAL *off, REAL *tau, REAL *work)
{
    const R(view) w = R(columns)(work, n);
    REAL *row = work + n * wide, *both = row + 2 * n;
    for (int64_t i = 0; i < wide; i++) {
        if (!R(tridiagonal_column)(n, i, a, w, off, tau, row))
            return false;
        diagonal[i] = a.at[i + i * a.col];
    }
    const int64_t left = n - wide;
    for (int64_t j = 0; j < wide; j++) /* [V W] and [-W -V]: one product */
        for (int64_t i = 0; i < left; i++) {
            const REAL v = a.at[wide + i + j * a.col], x = work[wide + i + j * n];
            both[i + j * left] = v;
            both[i + (wide + j) * left] = x;
            both[i + (2 * wide + j) * left] = -x;
            both[i + (3 * wide + j) * left] = -v;
        }
    return R(multiply)(left, left, 2 * wide, R(columns)(both, left), R(turned)(R(columns)(both + 2 * wide * left, left)), true,
                       R(from)(a, wide, wide));
}

/* Makes a symmetric matrix tridiagonal: a [n, n], of which the lower half is given, keeps the reflections below its diagonal. */
static bool R(tridiagonal)(int64_t n, REAL *a, REAL *diagonal, REAL *off, REAL *tau)
{
    REAL *work = trek_block_alloc((size_t)(5 * n * NARROW + 2 * n) * sizeof *work);
    if (!work)
        return false;
    for (int64_t j = 0; j < n; j++)
        for (int64_t i = 0; i < j; i++)
            a[i + j * n] = a[j + i * n];
    bool fine = true;
    int64_t begin = 0;
    for (int64_t wide; fine && begin < n - 1; begin += wide) {
        wide = n - 1 - begin < NARROW ? n - 1 - begin : NARROW;
        fine = R(tridiagonal_panel)(n - begin, wide, R(columns)(a + begin * (n + 1), n), diagonal + begin, off + begin,
                                    tau + begin,
                                    work);
    }
    diagonal[n - 1] = a[n * n - 1];
    trek_block_free(work);
    return fine;
}

/* --- vectors of a tridiagonal matrix: divide and conquer (Gu and Eisenstat, SIAM J. Matrix Anal. Appl. 1995) --- */

/* What the halves of a matrix share: routines of LAPACK, and space for them. */
typedef struct R(halves) {
    const trek_orthogonal_routines *lapack;
    int64_t lead;
    REAL *work; /* 2 n n + 4 n */
    int *places; /* 4 n */
} R(halves);

/* Replaces the differences d_i - x_j in s [k, k] by the vectors of the modified problem, with z computed anew from them so that
 * they are orthogonal; element i goes to row order[i]. */
static void R(secular_vectors)(int64_t k, const REAL *poles, REAL *z, const int *order, R(view) s, REAL *spare)
{
    for (int64_t i = 0; i < k; i++)
        spare[i] = s.at[i + i * s.col];
    for (int64_t j = 0; j < k; j++) {
        const REAL *column = s.at + j * s.col;
        for (int64_t i = 0; i < j; i++)
            spare[i] *= column[i] / (poles[i] - poles[j]);
        for (int64_t i = j + 1; i < k; i++)
            spare[i] *= column[i] / (poles[i] - poles[j]);
    }
    for (int64_t i = 0; i < k; i++)
        z[i] = (REAL)copysign(sqrt(-(double)spare[i]), (double)z[i]);
    for (int64_t j = 0; j < k; j++) {
        REAL *column = s.at + j * s.col;
        double sum = 0;
        for (int64_t i = 0; i < k; i++) {
            spare[i] = z[i] / column[i];
            sum += (double)spare[i] * (double)spare[i];
        }
        const double length = sqrt(sum);
        for (int64_t i = 0; i < k; i++)
            column[i] = (REAL)((double)spare[order[i] - 1] / length);
    }
}

/* Multiplies the vectors of both halves, of which LAPACK has gathered those that matter in q2, by those of the joined problem. */
static bool R(joined_vectors)(int64_t n, int64_t first, int64_t k, const int *kinds, const REAL *q2, R(view) q, REAL *s)
{
    const int64_t upper = kinds[0] + kinds[1], lower = kinds[1] + kinds[2], second = n - first;
    const R(view) vectors = R(columns)(s, k);
    for (int64_t j = 0; j < k; j++)
        memcpy(s + j * k, q.at + j * q.col, (size_t)k * sizeof *s);
    return R(multiply)(first, k, upper, R(columns)((REAL *)q2, first), vectors, false, q) &&
        R(multiply)(second, k, lower, R(columns)((REAL *)q2 + first * upper, second), R(from)(vectors, kinds[0], 0), false,
                    R(from)(q, first, 0));
}

/* Joins two halves: d has their values, q their vectors on its diagonal, order what sorts each. */
static int R(join)(const R(halves) *h, int64_t n, int64_t first, REAL *d, R(view) q, int *order, REAL coupling)
{
    int k = 0, size = (int)n, cut = (int)first, lead = (int)h->lead, info = 0, up = 1, down = -1;
    REAL *z = h->work, *poles = z + n, *w = poles + n, *spare = w + n, *q2 = spare + n;
    int *index = h->places, *gathered = index + n, *kinds = gathered + n, *packed = kinds + n;
    for (int64_t j = 0; j < n; j++)
        z[j] = q.at[(j < first ? first - 1 : first) + j * q.col];
    h->lapack->laed2(&k, &size, &cut, d, q.at, &lead, order, &coupling, z, poles, w, q2, index, gathered, packed, kinds, &info);
    if (info != 0 || k == 0) {
        for (int64_t j = 0; j < n; j++)
            order[j] = (int)(j + 1);
        return info;
    }
    for (int j = 1; j <= k && info == 0; j++)
        h->lapack->laed4(&k, &j, poles, w, q.at + (j - 1) * q.col, &coupling, d + j - 1, &info);
    if (info != 0)
        return info;
    if (k == 1) {
        q.at[0] = 1;
    } else if (k == 2) { /* then the vectors themselves were computed */
        for (int64_t j = 0; j < 2; j++) {
            REAL *column = q.at + j * q.col, pair[2] = { column[0], column[1] };
            column[0] = pair[gathered[0] - 1];
            column[1] = pair[gathered[1] - 1];
        }
    } else {
        R(secular_vectors)(k, poles, w, gathered, q, spare);
    }
    const int64_t kept = first * (kinds[0] + kinds[1]) + (n - first) * (kinds[1] + kinds[2]);
    if (!R(joined_vectors)(n, first, k, kinds, q2, q, q2 + kept))
        return -1;
    int rest = size - k;
    h->lapack->lamrg(&k, &rest, d, &up, &down, order);
    return 0;
}

/* Sorts order, the numbers of d's elements from 1 on, by their values. It is sorted, but for rounding. */
static void R(sort_order)(int64_t n, const REAL *d, int *order)
{
    for (int64_t i = 1; i < n; i++) {
        const int moved = order[i];
        int64_t place = i;
        for (; place > 0 && d[order[place - 1] - 1] > d[moved - 1]; place--)
            order[place] = order[place - 1];
        order[place] = moved;
    }
}

static int R(conquer)(const R(halves) *h, int64_t n, REAL *d, REAL *off, R(view) q, int *order)
{
    if (n <= FEW_VALUES) {
        int size = (int)n, lead = (int)h->lead, info = 0;
        h->lapack->steqr("I", &size, d, off, q.at, &lead, h->work, &info, 1);
        for (int64_t j = 0; j < n; j++)
            order[j] = (int)(j + 1);
        return info;
    }
    const int64_t first = n / 2;
    const REAL coupling = off[first - 1], torn = coupling < 0 ? -coupling : coupling;
    d[first - 1] -= torn;
    d[first] -= torn;
    int info = R(conquer)(h, first, d, off, q, order);
    if (info == 0)
        info = R(conquer)(h, n - first, d + first, off + first, R(from)(q, first, first), order + first);
    return info == 0 ? R(join)(h, n, first, d, q, order, coupling) : info;
}

/* Computes values d and vectors q [n, n] of the tridiagonal matrix, in ascending order, into `values` and `vectors`. */
static int R(tridiagonal_vectors)(const trek_orthogonal_routines *lapack, int64_t n, REAL *d, REAL *off, REAL *values,
                                  REAL *vectors)
{
    REAL *q = trek_block_alloc((size_t)(3 * n * n + 8 * n) * sizeof *q);
    int *places = trek_block_alloc((size_t)(5 * n) * sizeof *places), info = -1;
    if (q && places) {
        const R(halves) h = { .lapack = lapack, .lead = n, .work = q + n * n, .places = places };
        int *order = places + 4 * n;
        memset(q, 0, (size_t)(n * n) * sizeof *q);
        info = R(conquer)(&h, n, d, off, R(columns)(q, n), order);
        if (info == 0)
            R(sort_order)(n, d, order);
        for (int64_t j = 0; info == 0 && j < n; j++) {
            values[j] = d[order[j] - 1];
            memcpy(vectors + j * n, q + (order[j] - 1) * n, (size_t)n * sizeof *q);
        }
    }
    trek_block_free(q);
    trek_block_free(places);
    return info;
}

/* Multiplies d and off so that the largest is 1, in place; returns it. */
static REAL R(scaled)(int64_t n, REAL *d, REAL *off)
{
    REAL largest = 0;
    for (int64_t i = 0; i < n; i++) {
        REAL x = (REAL)fabs((double)d[i]), y = i < n - 1 ? (REAL)fabs((double)off[i]) : 0;
        largest = x > largest || x != x ? x : largest;
        largest = y > largest || y != y ? y : largest;
    }
    for (int64_t i = 0; i < n && largest > 0; i++) {
        d[i] /= largest;
        if (i < n - 1)
            off[i] /= largest;
    }
    return largest;
}

static int R(eigh)(const trek_orthogonal_routines *lapack, int64_t n, bool vectors, REAL *a, REAL *values)
{
    REAL *d = trek_block_alloc((size_t)(3 * n + (vectors ? n * n : 0)) * sizeof *d), *off = d + n, *tau = off + n, *z = tau + n;
    int info = d && R(tridiagonal)(n, a, d, off, tau) ? 0 : -1;
    REAL largest = info == 0 ? R(scaled)(n, d, off) : 0;
    if (info == 0 && !(largest - largest == 0)) {
        info = 1; /* infinities or NaN */
    } else if (info == 0 && !vectors) {
        int size = (int)n;
        lapack->sterf(&size, d, off, &info);
        memcpy(values, d, (size_t)n * sizeof *values);
    } else if (info == 0) {
        info = R(tridiagonal_vectors)(lapack, n, d, off, values, z);
        if (info == 0 && !R(reflect_all)(n - 1, n - 1, R(from)(R(columns)(a, n), 1, 0), tau, n, false,
                                         R(from)(R(columns)(z, n), 1, 0)))
            info = -1;
        if (info == 0)
            memcpy(a, z, (size_t)(n * n) * sizeof *a);
    }
    for (int64_t i = 0; info == 0 && i < n; i++)
        values[i] *= largest;
    trek_block_free(d);
    return info;
}
