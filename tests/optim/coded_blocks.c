/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/optim/coded_blocks.h"

#include "tests/optim/kept_state.h"
#include "tests/support/support.h"
#include "tests/support/unit.h"

/* --- the book, as the paper's authors make it ------------------------------------------------------------------------- */

static int upwards(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* create_dynamic_map(signed) of bitsandbytes: for each of seven powers of ten the middles of equal parts of [0.1, 1]. */
void make_book(bool with_sign, double *book)
{
    int n = 0;
    for (int i = 0; i < 7; i++) {
        int cells = with_sign ? 1 << i : 2 << i;
        for (int j = 0; j < cells; j++) {
            double from = 0.1 + 0.9 * j / cells, to = 0.1 + 0.9 * (j + 1) / cells, middle = pow(10, i - 6) * (from + to) / 2;
            book[n++] = middle;
            if (with_sign)
                book[n++] = -middle;
        }
    }
    book[n++] = 0;
    book[n++] = 1;
    assert_int_equal(n, 256);
    qsort(book, 256, sizeof *book, upwards);
}

/* Where a code of the library is in the book. */
int place_of(int code, bool with_sign)
{
    if (!with_sign)
        return code;
    return code <= 128 ? 127 + code : 255 - code;
}

/* --- blocks ------------------------------------------------------------------------------------------------------ */

/* That codes and scale are those of the n numbers of a block. */
static void check_block(const float *x, int n, const uint8_t *codes, float scale, bool with_sign, const double *book,
                        const char *what)
{
    double most = 0, own = 0;
    for (int i = 0; i < n; i++)
        if (fabs((double)x[i]) > most || (fabs((double)x[i]) == most && x[i] > 0))
            most = fabs((double)x[i]), own = (double)x[i];
    if ((double)scale != own)
        fail_msg("%s: the scale is %g, not %g", what, (double)scale, own);
    for (int i = 0; i < n; i++) {
        int nearest = with_sign ? 127 : 0;
        double want = own != 0 ? (double)x[i] / own : 0, best = HUGE_VAL;
        for (int k = 0; k < 256; k++)
            if ((with_sign || k > 0 || want == 0) && fabs(book[k] - want) < best)
                best = fabs(book[k] - want), nearest = k;
        double is = book[place_of(codes[i], with_sign)];
        if (own == 0 ? codes[i] != 0 : place_of(codes[i], with_sign) != nearest && fabs(is - want) > best + 1e-6 * fabs(want))
            fail_msg("%s: element %d, %g of %g, has code %d, %g", what, i, (double)x[i], own, codes[i], is);
    }
}

static int check_state(const trek_optimizer *coded, const trek_state *codes, const trek_state *values, const char *param, int s)
{
    const char *state = coded->klass->states[s].name;
    char name[96], scaled[128];
    snprintf(name, sizeof name, "%s.%s", param, state ? state : "");
    snprintf(scaled, sizeof scaled, "%s.scale", name);
    trek_tensor *x = trek_state_find(values, name), *c = trek_state_find(codes, name), *scale = trek_state_find(codes, scaled);
    assert_int_equal(x != NULL, c != NULL);
    if (!x || trek_tensor_dtype(x) == TREK_F64) {
        assert_null(scale);
        assert_true(!x || test_same_bits(x, c));
        return 0;
    }
    bool with_sign = !coded->klass->states[s].positive;
    double book[256];
    make_book(with_sign, book);
    assert_int_equal(trek_tensor_dtype(c), TREK_U8);
    assert_int_equal(trek_tensor_dtype(scale), TREK_F32);
    int64_t n = trek_tensor_numel(x);
    assert_int_equal(trek_tensor_numel(scale), (n + BLOCK - 1) / BLOCK);
    for (int64_t at = 0; at < n; at += BLOCK)
        check_block((const float *)trek_tensor_data(x) + at, (int)(n - at < BLOCK ? n - at : BLOCK),
                    (const uint8_t *)trek_tensor_data(c) + at, ((const float *)trek_tensor_data(scale))[at / BLOCK], with_sign,
                    book, name);
    return 1;
}

void check_codes(trek_optimizer *coded, trek_optimizer *wide)
{
    trek_state *codes = trek_optimizer_save(coded), *values = trek_optimizer_save(wide);
    assert_true(codes && values);
    int checked = 0;
    for (int p = 0; p < PARAMS; p++)
        for (int s = 0; s < TREK_UPDATE_STATES; s++)
            checked += check_state(coded, codes, values, names[p], s);
    assert_true(checked > 0);
    trek_state_free(&codes);
    trek_state_free(&values);
}
