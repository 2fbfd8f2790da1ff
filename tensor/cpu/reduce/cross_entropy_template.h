/* SPDX-License-Identifier: Apache-2.0 */
/* Cross entropy over rows of logits for one real type. Included by cross_entropy_rows.h, after vector.h. */

TREK_INLINE V TREK_R(larger)(V x, V y)
{
    TREK_R(trek_indices) take = x > y; /* NaN in x is ignored */
    return (V)(((TREK_R(trek_indices))x & take) | ((TREK_R(trek_indices))y & ~take));
}

/* Loads the end of a row, fewer than W elements, padded with `fill`. */
TREK_INLINE V TREK_R(rest_of_row)(const T *x, int64_t n, T fill)
{
    TREK_R(trek_indices) number, inside;
    for (int l = 0; l < W; l++)
        number[l] = l;
    inside = number < (TREK_R(trek_indices)){ 0 } + (int32_t)n;
    V rest = TREK_R(load_part)(x, TREK_R(lanes)((int)n));
    return (V)(((TREK_R(trek_indices))rest & inside) | ((TREK_R(trek_indices))TREK_R(spread)(fill) & ~inside));
}

/* Returns the largest number of a row. NaN is ignored (it reaches the loss through the sum). Returns -infinity if
 * there is no number. */
static T TREK_R(row_max)(const T *x, int64_t n)
{
    const T none = -(T)INFINITY;
    V a = TREK_R(spread)(none), b = a;
    int64_t j = 0;
    for (; j + 2 * W <= n; j += 2 * W) {
        a = TREK_R(larger)(TREK_R(load)(x + j), a);
        b = TREK_R(larger)(TREK_R(load)(x + j + W), b);
    }
    for (; j < n; j += W)
        a = TREK_R(larger)(n - j >= W ? TREK_R(load)(x + j) : TREK_R(rest_of_row)(x + j, n - j, none), a);
    a = TREK_R(larger)(a, b);
    T lanes[W];
    TREK_R(store)(lanes, a);
    for (int half = W / 2; half > 0; half /= 2)
        for (int l = 0; l < half; l++)
            lanes[l] = lanes[l + half] > lanes[l] ? lanes[l + half] : lanes[l];
    return lanes[0];
}

/* Returns the sum of e^(x - top): in vectors for at most 1024 elements, then in double. */
static double TREK_R(row_exp_sum)(const T *x, int64_t n, T top)
{
    const V shift = TREK_R(spread)(top);
    double total = 0;
    int64_t j = 0;
    for (int64_t end; j + W <= n; j = end) {
        end = n - j < 1024 ? j + (n - j) / W * W : j + 1024;
        V sum = { 0 };
        for (int64_t i = j; i < end; i += W)
            sum += TREK_R(exponential)(TREK_R(load)(x + i) - shift);
        total += TREK_R(sum)(sum);
    }
    if (j < n)
        total += TREK_R(sum)(TREK_R(exponential)(TREK_R(rest_of_row)(x + j, n - j, -(T)INFINITY) - shift));
    return total;
}

static void TREK_R(loss_rows)(void *arg, int64_t begin, int64_t end)
{
    const loss_job *job = arg;
    const int64_t n = job->classes;
    const double *weight = job->weight;
    for (int64_t row = begin; row < end; row++) {
        const T *x = (const T *)job->logits + row * n;
        int64_t label = trek_cpu_integer(job->labels, job->first_row + row);
        T top = TREK_R(row_max)(x, n);
        T shift = top - top == 0 ? top : 0; /* rows of -infinity, or with +infinity or NaN, give NaN below */
        double rest = log(TREK_R(row_exp_sum)(x, n, shift)), lse = (double)shift + rest;
        job->lse[row] = lse;
        job->losses[row] = 0;
        if (label == job->ignore)
            continue;
        double own = weight ? weight[label] : 1, loss = own * ((double)shift - (double)x[label] + rest);
            /* so that a small `rest` is not lost in lse */
        if (job->smoothing > 0) {
            double all = 0;
            for (int64_t j = 0; j < n; j++)
                all += (weight ? weight[j] : 1) * (lse - (double)x[j]);
            loss = (1 - job->smoothing) * loss + job->smoothing / (double)n * all;
        }
        job->losses[row] = loss;
    }
}

/* Computes dx = g (own (p - at label) (1 - s) + s / n (p W - w)), where own is the label's weight and W the sum of
 * all. */
static void TREK_R(grad_rows)(void *arg, int64_t begin, int64_t end)
{
    const loss_job *job = arg;
    const int64_t n = job->classes;
    for (int64_t row = begin; row < end; row++) {
        const T *x = (const T *)job->logits + row * n;
        T *dx = (T *)job->grad_logits + row * n;
        int64_t label = trek_cpu_integer(job->labels, job->first_row + row);
        if (label == job->ignore) {
            memset(dx, 0, (size_t)n * sizeof(T));
            continue;
        }
        double grad = job->grads ? job->grads[row] : job->grad, own = job->weight ? job->weight[label] : 1;
        double each = job->smoothing / (double)n;
        T slope = (T)(grad * ((1 - job->smoothing) * own + each * job->weight_sum)), high = (T)job->lse[row],
            low = (T)what_lacks(job->lse[row], (double)high);
        const V factor = TREK_R(spread)(slope), most = TREK_R(spread)(high), rest = TREK_R(spread)(low);
        for (int64_t j = 0; j < n; j += W) {
            trek_lanes lanes = TREK_R(lanes)(n - j < W ? (int)(n - j) : W);
            TREK_R(store_part)(dx + j, lanes, factor * TREK_R(exponential)(TREK_R(load_part)(x + j, lanes) - most - rest));
        }
        dx[label] -= (T)(grad * (1 - job->smoothing) * own);
        if (job->smoothing > 0 && job->weight)
            for (int64_t j = 0; j < n; j++)
                dx[j] -= (T)(grad * each * job->weight[j]);
        else if (job->smoothing > 0)
            for (int64_t j = 0; j < n; j++)
                dx[j] -= (T)(grad * each);
    }
}
