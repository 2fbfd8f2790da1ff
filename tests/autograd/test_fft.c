/* SPDX-License-Identifier: Apache-2.0 */
/* Fourier transforms against their sums, there and back, gradients by differences. Where FFTW is not installed (or, by
 * TREK_TEST_FFT=absent, not to be found): what is said then. */
#include "autograd/backward.h"
#include "autograd/fft.h"
#include "autograd/ops.h"
#include "tensor/shapes.h"
#include "tests/autograd/differences.h"
#include "tests/support/scoped.h"
#include "tests/support/support.h"

static void against_sums(void **state)
{
    for (int n = 1; n <= 9; n++) {
        trek_var *x = random_values(1, trek_dims(3, n, 2)), *real = trek_select(x, 2, 0);
        double *in = test_read(trek_var_data(x)), *out = test_read(trek_var_data(trek_fft(x, 0, -1, TREK_FFT_NORM_BACKWARD)));
        double *half = test_read(trek_var_data(trek_rfft(real, 0, 1, TREK_FFT_NORM_BACKWARD)));
        for (int line = 0; line < 3; line++)
            for (int k = 0; k < n; k++) {
                double re = 0, im = 0, c = 0, s = 0;
                for (int j = 0; j < n; j++) {
                    const double *pair = in + 2 * (line * n + j);
                    double angle = -2 * acos(-1) * j * k / n;
                    re += pair[0] * cos(angle) - pair[1] * sin(angle);
                    im += pair[0] * sin(angle) + pair[1] * cos(angle);
                    c += pair[0] * cos(angle);
                    s += pair[0] * sin(angle);
                }
                const double *made = out + 2 * (line * n + k), *of_half = half + 2 * (line * (n / 2 + 1) + k);
                assert_true(fabs(made[0] - re) < 1e-12 && fabs(made[1] - im) < 1e-12);
                assert_true(k > n / 2 || (fabs(of_half[0] - c) < 1e-12 && fabs(of_half[1] - s) < 1e-12));
            }
        free(in);
        free(out);
        free(half);
    }
}

#define ASSERT_CLOSE(x, y) assert_close(x, y, __LINE__)
static void assert_close(trek_var *x, trek_var *y, int line)
{
    trek_var *apart = trek_max(trek_abs(trek_sub(x, y)), trek_dims_all(), false);
    if (!apart || !(trek_var_item(apart) <= 1e-12))
        fail_msg("line %d: %s", line, apart ? "they differ" : trek_error());
}

static void there_and_back(void **state)
{
    trek_var *pairs = random_values(1, trek_dims(4, 5, 3, 2)), *x = random_values(2, trek_dims(4, 6, 5));
    for (int norm = TREK_FFT_NORM_BACKWARD; norm <= TREK_FFT_NORM_FORWARD; norm++) {
        for (int dim = -3; dim < 3; dim++) {
            ASSERT_CLOSE(trek_ifft(trek_fft(pairs, 0, dim, norm), 0, dim, norm), pairs);
            ASSERT_CLOSE(trek_irfft(trek_rfft(x, 0, dim, norm), trek_var_size(x, dim), dim, norm), x);
        }
        ASSERT_CLOSE(trek_ifft2(trek_fft2(pairs, norm), norm), pairs);
        ASSERT_CLOSE(trek_irfft2(trek_rfft2(trek_transpose(x, 1, 2), norm), norm), trek_transpose(x, 1, 2));
        /* several dimensions are one after the other */
        trek_shape none = trek_dims_none();
        trek_dims_list all = trek_dims_all(), two = trek_dims(2, 0);
        trek_var *each = trek_fft(trek_fft(trek_fft(pairs, 0, 0, norm), 0, 1, norm), 0, 2, norm);
        ASSERT_CLOSE(trek_fftn(pairs, none, all, norm), each);
        ASSERT_CLOSE(trek_fftn(pairs, trek_dims(0, 0), all, norm), trek_fft2(pairs, norm));
        ASSERT_CLOSE(trek_ifftn(each, none, all, norm), pairs);
        ASSERT_CLOSE(trek_fftn(pairs, trek_dims(2, 6), two, norm), trek_fft(trek_fft(pairs, 2, 2, norm), 6, 0, norm));
        ASSERT_CLOSE(trek_rfftn(x, none, two, norm), trek_fft(trek_rfft(x, 0, 0, norm), 0, 2, norm));
        ASSERT_CLOSE(trek_irfftn(trek_rfftn(x, none, two, norm), trek_dims(5, 4), two, norm), x);
        ASSERT_CLOSE(trek_rfftn(x, none, all, norm), trek_fft(trek_fft(trek_rfft(x, 0, 2, norm), 0, 1, norm), 0, 0, norm));
        /* real frequencies and half of their signal */
        ASSERT_CLOSE(trek_hfft(trek_ihfft(x, 0, 1, norm), 6, 1, norm), x);
    }
    ASSERT_VALUES(trek_rfft(LIST(TREK_F32, 1, 2, 3, 4), 0, 0, TREK_FFT_NORM_BACKWARD), 10, 0, -2, 2, -2, 0);
    ASSERT_VALUES(trek_rfft(LIST(TREK_I64, 1, 2, 3, 4), 0, 0, TREK_FFT_NORM_ORTHO), 5, 0, -1, 1, -1, 0);
    ASSERT_VALUES(trek_rfft(LIST(TREK_F64, 1, 2, 3, 4), 2, 0, TREK_FFT_NORM_BACKWARD), 3, 0, -1, 0); /* cut */
    ASSERT_VALUES(trek_rfft(LIST(TREK_F64, 1, 2), 4, 0, TREK_FFT_NORM_FORWARD), 0.75, 0, 0.25, -0.5, -0.25, 0); /* filled */
    ASSERT_VALUES(trek_irfft(VALUES(trek_dims(2, 2), TREK_F64, 3, 9, -1, 9), 0, 0, TREK_FFT_NORM_BACKWARD), 1, 2);
    assert_int_equal(trek_var_numel(trek_rfft(values_of(trek_dims(0, 4), TREK_F64, (double[]){ 0 }), 0, 1,
                                              TREK_FFT_NORM_BACKWARD)),
                     0);
}

static void frequencies(void **state)
{
    trek_device device = test_device();
    ASSERT_VALUES(trek_fftfreq(4, 0.5, TREK_F64, device), 0, 0.5, -1, -0.5);
    ASSERT_VALUES(trek_fftfreq(5, 1, TREK_F64, device), 0, 0.2, 0.4, -0.4, -0.2);
    ASSERT_VALUES(trek_rfftfreq(4, 1, TREK_F32, device), 0, 0.25, 0.5);
    ASSERT_VALUES(trek_rfftfreq(1, -2, TREK_F16, device), 0);
    ASSERT_VALUES(trek_fftshift(trek_fftfreq(5, 0.2, TREK_F64, device), trek_dims_all(), false), -2, -1, 0, 1, 2);
    trek_var *x = VALUES(trek_dims(2, 3), TREK_I64, 0, 1, 2, 3, 4, 5);
    ASSERT_VALUES(trek_fftshift(x, trek_dims_all(), false), 5, 3, 4, 2, 0, 1);
    ASSERT_VALUES(trek_fftshift(x, trek_dims(-1), false), 2, 0, 1, 5, 3, 4);
    ASSERT_VALUES(trek_ifftshift(trek_fftshift(x, trek_dims(1, 0), false), trek_dims_all(), false), 0, 1, 2, 3, 4, 5);
    trek_var *pairs = VALUES(trek_dims(3, 2), TREK_F32, 0, 1, 2, 3, 4, 5);
    ASSERT_VALUES(trek_fftshift(pairs, trek_dims_all(), true), 4, 5, 0, 1, 2, 3);
    ASSERT_VALUES(trek_ifftshift(pairs, trek_dims(-1), true), 2, 3, 4, 5, 0, 1);
    ASSERT_REFUSED(trek_fftshift(x, trek_dims_all(), true), TREK_ERR_SHAPE);
    ASSERT_REFUSED(trek_ifftshift(x, trek_dims(1, -1), false), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(trek_fftshift(NULL, trek_dims_all(), false), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(trek_fftfreq(0, 1, TREK_F32, device), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(trek_rfftfreq(3, 0, TREK_F32, device), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(trek_fftfreq(3, 1, TREK_I64, device), TREK_ERR_DTYPE);
}

static trek_var *turn(double amplitude, int64_t n, bool periodic)
{
    return amplitude > 0.5 ? trek_hamming_window(n, periodic, TREK_F64, test_device())
                           : trek_hann_window(n, periodic, TREK_F64, test_device());
}

static void windows(void **state)
{
    ASSERT_VALUES(turn(0.5, 4, true), 0, 0.5, 1, 0.5);
    ASSERT_VALUES(turn(0.5, 5, false), 0, 0.5, 1, 0.5, 0);
    ASSERT_VALUES(turn(0.54, 4, true), 0.08, 0.54, 1, 0.54);
    ASSERT_VALUES(turn(0.54, 1, false), 1);
    assert_int_equal(trek_var_numel(turn(0.5, 0, true)), 0);
    ASSERT_VALUES(trek_hann_window(2, true, TREK_BF16, test_device()), 0, 1);
    trek_device device = test_device();
    ASSERT_VALUES(trek_blackman_window(4, true, TREK_F64, device), 0, 0.34, 1, 0.34);
    ASSERT_VALUES(trek_bartlett_window(5, false, TREK_F64, device), 0, 0.5, 1, 0.5, 0);
    ASSERT_VALUES(trek_bartlett_window(4, true, TREK_F16, device), 0, 0.5, 1, 0.5);
    /* I0(1) = 1.26606587775200834, I0(sqrt(3 / 4)) = 1.19644961380449 */
    double edge = 1 / 1.26606587775200834, quarter = 0;
    for (double k = 0, term = 1; k < 40; k++, term *= 3.0 / 16 / (k * k))
        quarter += term;
    ASSERT_VALUES(trek_kaiser_window(5, false, 1, TREK_F64, device), edge, quarter * edge, 1, quarter * edge, edge);
    ASSERT_VALUES(trek_kaiser_window(4, true, -1, TREK_F64, device), edge, quarter * edge, 1, quarter * edge);
    ASSERT_VALUES(trek_kaiser_window(3, false, 0, TREK_F64, device), 1, 1, 1);
    ASSERT_VALUES(trek_kaiser_window(3, false, 5000, TREK_F64, device), 0, 1, 0);
    ASSERT_VALUES(trek_kaiser_window(1, false, 12, TREK_F32, device), 1);
    ASSERT_REFUSED(trek_kaiser_window(3, false, NAN, TREK_F32, device), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(trek_blackman_window(3, true, TREK_I32, device), TREK_ERR_DTYPE);
    ASSERT_REFUSED(turn(0.5, -1, true), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(trek_hann_window(4, true, TREK_I64, test_device()), TREK_ERR_DTYPE);
}

/* Each frame is the transform of its part of the signal times the window. */
static void frames(void **state)
{
    trek_var *x = random_values(3, trek_dims(2, 19)), *hann = turn(0.5, 6, true);
    const trek_stft_opts opts = { .hop_length = 3, .window = hann, .no_center = true };
    trek_var *made = trek_stft(x, 6, &opts), *padded = trek_stft(x, 6, &(trek_stft_opts){ .hop_length = 3, .window = hann });
    assert_true(trek_shape_equal(trek_var_shape(made), trek_dims(2, 4, 5, 2)));
    for (int i = 0; i < 5; i++) {
        trek_var *part = trek_rfft(trek_mul(trek_narrow(x, 1, 3 * i, 6), hann), 0, 1, TREK_FFT_NORM_BACKWARD);
        ASSERT_CLOSE(trek_select(made, 2, i), part);
        ASSERT_CLOSE(trek_select(padded, 2, i + 1), part); /* the first one's middle is the beginning */
    }
    trek_var *all = trek_stft(x, 6, &(trek_stft_opts){ .hop_length = 3, .window = hann, .no_center = true, .two_sided = true });
    assert_int_equal(trek_var_size(all, 1), 6);
    ASSERT_CLOSE(trek_narrow(all, 1, 0, 4), made);
    ASSERT_CLOSE(trek_select(trek_select(all, 1, 5), 2, 1), trek_neg(trek_select(trek_select(all, 1, 1), 2, 1)));
    assert_int_equal(trek_var_numel(trek_stft(trek_narrow(x, 0, 0, 0), 6, NULL)), 0);
}

static void frames_and_back(void **state)
{
    trek_var *x = random_values(3, trek_dims(2, 24));
    for (int kind = 0; kind < 8; kind++) {
        trek_stft_opts opts = { .hop_length = 2, .win_length = kind & 4 ? 6 : 0, .normalized = kind & 1, .two_sided = kind & 2,
                                .window = turn(0.54, kind & 4 ? 6 : 8, true), .pad_mode = (trek_stft_pad)(kind & 3) };
        ASSERT_CLOSE(trek_istft(trek_stft(x, 8, &opts), 8, 24, &opts), x);
        ASSERT_CLOSE(trek_istft(trek_stft(trek_select(x, 0, 1), 8, &opts), 8, 0, &opts), trek_select(x, 0, 1));
    }
    trek_var *longer = trek_istft(trek_stft(x, 8, NULL), 8, 30, NULL);
    ASSERT_CLOSE(trek_narrow(longer, 1, 0, 24), x);
    ASSERT_VALUES(trek_select(trek_narrow(longer, 1, 28, 2), 0, 0), 0, 0);
}

static trek_var *of_stft(trek_var *const *in)
{
    return trek_square(trek_stft(in[0], 4, &(trek_stft_opts){ .hop_length = 2, .window = in[1], .two_sided = true }));
}
static trek_var *of_istft(trek_var *const *in)
{
    trek_var *window = trek_add_scalar(in[1], 2);
    return trek_square(trek_istft(in[0], 4, 0, &(trek_stft_opts){ .hop_length = 2, .window = window }));
}

static void refused_frames(void **state)
{
    trek_var *x = random_values(1, trek_dims(12)), *pairs = random_values(1, trek_dims(3, 4, 2));
    ASSERT_REFUSED(trek_stft(NULL, 4, NULL), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(trek_stft(x, 0, NULL), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(trek_stft(x, 3, NULL), TREK_ERR_ARGUMENT); /* a hop of 0 */
    ASSERT_REFUSED(trek_stft(x, 4, &(trek_stft_opts){ .win_length = 5 }), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(trek_stft(x, 4, &(trek_stft_opts){ .window = x }), TREK_ERR_SHAPE);
    ASSERT_REFUSED(trek_stft(x, 4, &(trek_stft_opts){ .pad_mode = (trek_stft_pad)9 }), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(trek_stft(x, 4, &(trek_stft_opts){ .window = trek_cast(trek_narrow(x, 0, 0, 4), TREK_F32) }), TREK_ERR_DTYPE);
    ASSERT_REFUSED(trek_stft(x, 16, &(trek_stft_opts){ .no_center = true }), TREK_ERR_SHAPE);
    ASSERT_REFUSED(trek_stft(trek_cast(x, TREK_F16), 4, NULL), TREK_ERR_DTYPE);
    ASSERT_REFUSED(trek_stft(pairs, 4, NULL), TREK_ERR_SHAPE);
    ASSERT_REFUSED(trek_istft(x, 4, 0, NULL), TREK_ERR_SHAPE);
    ASSERT_REFUSED(trek_istft(pairs, 8, 0, NULL), TREK_ERR_SHAPE);
    ASSERT_REFUSED(trek_istft(pairs, 4, -1, NULL), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(trek_istft(pairs, 4, 0, &(trek_stft_opts){ .hop_length = 5 }), TREK_ERR_ARGUMENT);
    trek_var *none = trek_zeros_like(trek_narrow(x, 0, 0, 4));
    ASSERT_REFUSED(trek_istft(pairs, 4, 0, &(trek_stft_opts){ .window = none }), TREK_ERR_ARGUMENT);
}

static trek_var *of_fft(trek_var *const *in) { return trek_fft(in[0], 4, 0, TREK_FFT_NORM_ORTHO); }
static trek_var *of_ifft(trek_var *const *in) { return trek_square(trek_ifft(in[0], 0, -1, TREK_FFT_NORM_BACKWARD)); }
static trek_var *of_rfft(trek_var *const *in) { return trek_square(trek_rfft(in[0], 0, -1, TREK_FFT_NORM_BACKWARD)); }
static trek_var *of_irfft(trek_var *const *in) { return trek_square(trek_irfft(in[0], 5, -1, TREK_FFT_NORM_BACKWARD)); }
static trek_var *of_even(trek_var *const *in) { return trek_square(trek_irfft(in[0], 0, 0, TREK_FFT_NORM_FORWARD)); }
static trek_var *of_plane(trek_var *const *in)
{
    return trek_exp(trek_irfft2(trek_square(trek_rfft2(in[0], TREK_FFT_NORM_ORTHO)), TREK_FFT_NORM_ORTHO));
}

static trek_var *of_several(trek_var *const *in)
{
    trek_var *y = trek_irfftn(trek_rfftn(in[0], trek_dims(3, 4), trek_dims(0, 1), TREK_FFT_NORM_ORTHO), trek_dims_none(),
                              trek_dims(1, 0),
                              TREK_FFT_NORM_BACKWARD);
    return trek_square(trek_fftshift(y, trek_dims(0), false));
}
static trek_var *of_mirrored(trek_var *const *in) { return trek_square(trek_hfft(in[0], 0, 0, TREK_FFT_NORM_BACKWARD)); }

static void gradients(void **state)
{
    check_gradients(of_fft, 1, (trek_shape[]){ trek_dims(3, 2, 2) }, true);
    check_gradients(of_ifft, 1, (trek_shape[]){ trek_dims(2, 3, 2) }, true);
    check_gradients(of_rfft, 1, (trek_shape[]){ trek_dims(2, 4) }, true);
    check_gradients(of_rfft, 1, (trek_shape[]){ trek_dims(5) }, true);
    check_gradients(of_several, 1, (trek_shape[]){ trek_dims(3, 2, 2) }, true);
    check_gradients(of_mirrored, 1, (trek_shape[]){ trek_dims(4, 2) }, true);
    check_gradients(of_irfft, 1, (trek_shape[]){ trek_dims(2, 3, 2) }, true);
    check_gradients(of_even, 1, (trek_shape[]){ trek_dims(3, 2, 2) }, true);
    check_gradients(of_stft, 2, (trek_shape[]){ trek_dims(2, 7), trek_dims(4) }, true);
    check_gradients(of_istft, 2, (trek_shape[]){ trek_dims(3, 4, 2), trek_dims(4) }, true);
    check_gradients(of_plane, 1, (trek_shape[]){ trek_dims(3, 4) }, true);
}

static void refused(void **state)
{
    trek_var *x = random_values(1, trek_dims(3, 4)), *pairs = random_values(1, trek_dims(3, 2));
    ASSERT_REFUSED(trek_fft(x, 0, 0, TREK_FFT_NORM_BACKWARD), TREK_ERR_SHAPE);
    ASSERT_REFUSED(trek_rfft(x, 0, 2, TREK_FFT_NORM_BACKWARD), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(trek_rfft(x, -1, 0, TREK_FFT_NORM_BACKWARD), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(trek_rfft(x, 0, 0, (trek_fft_norm)3), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(trek_rfft(trek_cast(x, TREK_F16), 0, 0, TREK_FFT_NORM_BACKWARD), TREK_ERR_DTYPE);
    ASSERT_REFUSED(trek_rfft(trek_select(trek_select(x, 0, 0), 0, 0), 0, 0, TREK_FFT_NORM_BACKWARD), TREK_ERR_SHAPE);
    ASSERT_REFUSED(trek_irfft(trek_narrow(pairs, 0, 0, 1), 0, 0, TREK_FFT_NORM_BACKWARD), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(trek_ifft2(pairs, TREK_FFT_NORM_BACKWARD), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(trek_fft2(NULL, TREK_FFT_NORM_BACKWARD), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(trek_fftn(pairs, trek_dims(2, 2), trek_dims(0), TREK_FFT_NORM_BACKWARD), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(trek_ifftn(x, trek_dims_none(), trek_dims(0, 0), TREK_FFT_NORM_BACKWARD), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(trek_rfftn(x, trek_dims(-1), trek_dims(0), TREK_FFT_NORM_BACKWARD), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(trek_irfftn(NULL, trek_dims_none(), trek_dims_all(), TREK_FFT_NORM_BACKWARD), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(trek_hfft(x, 0, 0, TREK_FFT_NORM_BACKWARD), TREK_ERR_SHAPE);
    ASSERT_REFUSED(trek_ihfft(NULL, 0, 0, TREK_FFT_NORM_BACKWARD), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(trek_rfft(trek_narrow(x, 0, 0, 0), 0, 0, TREK_FFT_NORM_BACKWARD), TREK_ERR_ARGUMENT);
}

static void absent(void **state)
{
    assert_null(trek_rfft(random_values(1, trek_dims(4)), 0, 0, TREK_FFT_NORM_BACKWARD));
    assert_int_equal(trek_error_status(), TREK_ERR_UNSUPPORTED);
    assert_non_null(strstr(trek_error(), "install libfftw3"));
}

int main(void)
{
    const struct CMUnitTest there[] = {
        TEST(against_sums), TEST(there_and_back), TEST(frequencies), TEST(gradients), TEST(refused), TEST(windows), TEST(frames),
        TEST(frames_and_back), TEST(refused_frames),
    };
    const struct CMUnitTest none[] = { cmocka_unit_test_setup_teardown(absent, open_scope, close_scope) };
    const char *role = getenv("TREK_TEST_FFT");
    if (role && strcmp(role, "absent") == 0)
        return cmocka_run_group_tests(none, NULL, NULL);
    open_scope(NULL);
    bool found = trek_rfft(random_values(1, trek_dims(4)), 0, 0, TREK_FFT_NORM_BACKWARD) &&
        trek_rfft(trek_cast(random_values(1, trek_dims(4)), TREK_F32), 0, 0, TREK_FFT_NORM_BACKWARD);
    if (!found)
        puts(trek_error());
    close_scope(NULL);
    return found ? cmocka_run_group_tests(there, NULL, NULL) : 77;
}
