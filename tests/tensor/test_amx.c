/* SPDX-License-Identifier: Apache-2.0 */
/* The tile instructions: those in plain C against what Intel's manual says, and against the CPU's own, bit for bit, where it has
 * them. */
#include "tests/support/unit.h"

#include "tensor/cpu/products/amx.h"
#include "tensor/cpu/products/amx_plain.h"

enum { ROWS = TILE_ROWS_MOST, COLS = TILE_ROW_BYTES / 4 };

static uint64_t state = 1;

static uint32_t random_bits(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 32);
}

/* A bf16: any bits, or a number of a size that sums of products lie around. */
static uint16_t random_half(bool any)
{
    uint32_t bits = random_bits();
    return (uint16_t)(any ? bits : (bits & 0x807f) | (120 + (bits >> 16) % 14) << 7);
}

static float flushed(float x) { return fabsf(x) < 0x1p-126f ? copysignf(0, x) : x; }

static float half_value(uint16_t x) { return flushed(trek_f32_from_bf16(x)); }

static void expect_same(float got, float wanted)
{
    if (isnan(wanted))
        assert_true(isnan(got));
    else
        assert_int_equal(trek_bits_f32(got), trek_bits_f32(wanted));
}

/* One element by the manual's steps: along k the first and the second numbers of pairs, each sum rounded, then both, then C. */
static float by_the_manual(uint16_t a[ROWS][2 * COLS], uint16_t b[ROWS][2 * COLS], int i, int j, int pairs, float c)
{
    float first = 0, second = 0;
    for (int k = 0; k < pairs; k++) {
        first = flushed(fmaf(half_value(a[i][2 * k]), half_value(b[k][2 * j]), first));
        second = flushed(fmaf(half_value(a[i][2 * k + 1]), half_value(b[k][2 * j + 1]), second));
    }
    return flushed(flushed(c) + flushed(first + second));
}

static void plain_products_follow_the_manual(void **unused)
{
    static tile_unit unit;
    for (int turn = 0; turn < 200; turn++) {
        uint16_t a[ROWS][2 * COLS], b[ROWS][2 * COLS];
        float c[ROWS][COLS], got[ROWS][COLS];
        tile_config config = tile_config_whole();
        if (turn % 2) {
            config.rows[0] = config.rows[4] = 5;
            config.row_bytes[0] = config.row_bytes[6] = 28;
            config.row_bytes[4] = 12, config.rows[6] = 3;
        }
        for (int i = 0; i < ROWS; i++)
            for (int j = 0; j < 2 * COLS; j++) {
                a[i][j] = random_half(turn % 4 > 1), b[i][j] = random_half(turn % 4 > 1);
                c[i][j / 2] = turn % 4 > 1 ? trek_f32_bits(random_bits()) : (float)(int32_t)random_bits() * 0x1p-31f;
            }
        memset(got, 0x55, sizeof got);
        tile_configure(&unit, &config);
        tile_load(&unit, 0, c, sizeof c[0]);
        tile_load(&unit, 4, a, sizeof a[0]);
        tile_load(&unit, 6, b, sizeof b[0]);
        tile_dot(&unit, 0, 4, 6);
        tile_store(&unit, 0, got, sizeof got[0]);
        for (int i = 0; i < ROWS; i++)
            for (int j = 0; j < COLS; j++)
                if (i < config.rows[0] && j < config.row_bytes[0] / 4)
                    expect_same(got[i][j], by_the_manual(a, b, i, j, config.row_bytes[4] / 4, c[i][j]));
                else
                    assert_int_equal(trek_bits_f32(got[i][j]), 0x55555555);
    }
}

/* C (+)= the pairs (x[k], y[k]) times ones. */
static float sum_of_pairs(float c, const float (*pairs)[2], int n)
{
    static tile_unit unit;
    const tile_config config = tile_config_whole();
    uint16_t a[ROWS][2 * COLS] = { { 0 } }, b[ROWS][2 * COLS];
    float sums[ROWS][COLS] = { { 0 } };
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < 2 * COLS; j++)
            b[i][j] = trek_bf16_from_f32(1);
    for (int k = 0; k < n; k++)
        for (int q = 0; q < 2; q++)
            a[3][2 * k + q] = trek_bf16_from_f32(pairs[k][q]);
    sums[3][7] = c;
    tile_configure(&unit, &config);
    tile_load(&unit, 2, sums, sizeof sums[0]);
    tile_load(&unit, 5, a, sizeof a[0]);
    tile_load(&unit, 6, b, sizeof b[0]);
    tile_dot(&unit, 2, 5, 6);
    tile_store(&unit, 2, sums, sizeof sums[0]);
    return sums[3][7];
}

static void sums_are_rounded_in_the_documented_order(void **unused)
{
    /* a tie goes to the even neighbour: down, and up */
    expect_same(sum_of_pairs(0, (const float[][2]){ { 1, 0 }, { 0x1p-24f, 0 } }, 2), 1);
    expect_same(sum_of_pairs(0, (const float[][2]){ { 1, 0 }, { 0x1p-23f, 0 }, { 0x1p-24f, 0 } }, 3), 1 + 0x1p-22f);
    /* first and second numbers are added up apart: 2^-24 and 2^-24 meet each other before they meet 1 */
    expect_same(sum_of_pairs(0, (const float[][2]){ { 1, 0x1p-24f }, { 0, 0x1p-24f } }, 2), 1 + 0x1p-23f);
    expect_same(sum_of_pairs(1, (const float[][2]){ { 0x1p-24f, 0x1p-24f } }, 1), 1 + 0x1p-23f);
    /* what C had comes last */
    expect_same(sum_of_pairs(-1, (const float[][2]){ { 1, 0 }, { 0x1p-25f, 0 } }, 2), 0);
}

static void subnormal_numbers_are_zeros(void **unused)
{
    expect_same(sum_of_pairs(0, (const float[][2]){ { 0x1p-127f, 0x1p-127f } }, 1), 0); /* of an operand */
    expect_same(sum_of_pairs(0x1p-127f, (const float[][2]){ { 0, 0 } }, 1), 0);         /* of what C had */
    expect_same(sum_of_pairs(0, (const float[][2]){ { 0x1.02p-126f, 0 }, { -0x1p-126f, 0 }, { 0x1p-126f, 0 } }, 3),
                0x1p-126f);                                                                     /* of a sum on the way */
    expect_same(sum_of_pairs(0x1p-126f, (const float[][2]){ { -0x1.02p-126f, 0 } }, 1), -0.0f); /* of a result */
    expect_same(tile_rounded(0x1p-126 - 0x1p-151), 0x1p-126f); /* subnormal only before it is rounded */
    expect_same(tile_rounded(-(0x1p-126 - 0x1.8p-151)), -0.0f);
    expect_same(sum_of_pairs(1, (const float[][2]){ { INFINITY, 0 } }, 1), INFINITY);
    expect_same(sum_of_pairs(1, (const float[][2]){ { INFINITY, -INFINITY } }, 1), NAN);
}

/* -- blocks -- */

enum { DEPTH = 3, BLOCK = 2 * TREK_AMX_LANES };

static uint16_t strips[2][2][DEPTH * TREK_AMX_MOST_TERMS * TREK_AMX_NUMBERS];

static trek_amx_block block_of(int variant, float *c)
{
    trek_amx_block block = { .a = { strips[0][0], variant & 1 ? strips[0][1] : NULL },
                             .b = { strips[1][0], variant & 2 ? strips[1][1] : NULL },
                             .depth = variant >> 2 & 3,
                             .terms = 1 + (variant >> 4) % 3,
                             .c = c,
                             .c_row = BLOCK };
    return block;
}

static void fill(bool any, float *c)
{
    for (int q = 0; q < 4; q++)
        for (size_t i = 0; i < sizeof strips[0][0] / 2; i++)
            strips[q / 2][q % 2][i] = random_half(any);
    for (int i = 0; i < BLOCK * BLOCK; i++)
        c[i] = any ? trek_f32_bits(random_bits()) : (float)(int32_t)random_bits() * 0x1p-31f;
}

/* Adds to sum the products that are computed, and to size their sizes. */
static void add_products(const trek_amx_block *block, int i, int j, double *sum, double *size)
{
    const uint16_t *a = block->a[i / 16], *b = block->b[j / 16];
    for (int64_t p = 0; p < block->depth * TREK_AMX_DEPTH; p++)
        for (int s = 0; s < block->terms; s++)
            for (int t = 0; s + t < block->terms; t++) {
                int64_t step = p / TREK_AMX_DEPTH * block->terms, q = p % TREK_AMX_DEPTH;
                double x = (double)trek_f32_from_bf16(a[(step + s) * TREK_AMX_NUMBERS + i % 16 * 32 + q]) *
                           (double)trek_f32_from_bf16(b[(step + t) * TREK_AMX_NUMBERS + q / 2 * 32 + j % 16 * 2 + q % 2]);
                *sum += x;
                *size += fabs(x);
            }
}

static void blocks_are_sums_of_products(void **unused)
{
    static float c[BLOCK * BLOCK], before[BLOCK * BLOCK];
    for (int variant = 0; variant < 64; variant++) {
        trek_amx_block block = block_of(variant, c);
        fill(false, c);
        memcpy(before, c, sizeof c);
        trek_amx_plain.begin();
        trek_amx_plain.multiply(&block);
        trek_amx_plain.end();
        for (int i = 0; i < BLOCK; i++)
            for (int j = 0; j < BLOCK; j++) {
                bool inside = (i < 16 || block.a[1]) && (j < 16 || block.b[1]);
                double sum = !inside ? (double)before[i * BLOCK + j] : 0, size = fabs(sum);
                if (inside)
                    add_products(&block, i, j, &sum, &size);
                assert_true(fabs((double)c[i * BLOCK + j] - sum) <= 0x1p-20 * size);
            }
    }
}

static void the_hardware_computes_the_same_bits(void **unused)
{
    static float plain[BLOCK * BLOCK], own[BLOCK * BLOCK];
    const trek_amx *hardware = trek_amx_hardware();
    if (!hardware) {
        puts("this machine has no tile instructions (AMX), or its system does not permit them");
        skip();
        return;
    }
    for (int variant = 0; variant < 256; variant++) {
        fill(variant & 128, plain);
        memcpy(own, plain, sizeof own);
        trek_amx_block block = block_of(variant, plain);
        trek_amx_plain.multiply(&block);
        block.c = own;
        hardware->begin();
        hardware->multiply(&block);
        hardware->end();
        for (int i = 0; i < BLOCK * BLOCK; i++)
            expect_same(own[i], plain[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_products_follow_the_manual),    cmocka_unit_test(sums_are_rounded_in_the_documented_order),
        cmocka_unit_test(subnormal_numbers_are_zeros),         cmocka_unit_test(blocks_are_sums_of_products),
        cmocka_unit_test(the_hardware_computes_the_same_bits),
    };
    return cmocka_run_group_tests_name("amx", tests, NULL, NULL);
}
