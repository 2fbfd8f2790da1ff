/* SPDX-License-Identifier: Apache-2.0 */
/* The order in which attention's blocks take heads and tiles: each once, in sections that fit the cache; and what they then read
 * from memory, by a model of a cache that many blocks share. */
#include "tensor/cuda/attention/launch_order.h"
#include "tests/support/unit.h"

/* Blocks of a grid that is smaller than the work take what is a grid's size further on. Each tile of each head comes up once; a
 * section's heads are through before those of the next; within a section tiles with more work come before those with less. */
static void takes_everything_once(const trek_launch_order *order, int sharing, int grid)
{
    const int units = order->tiles * order->pairs;
    bool *seen = calloc((size_t)units, sizeof *seen);
    assert_non_null(seen);
    for (int block = 0; block < grid; block++)
        for (int unit = block; unit < units; unit += grid) {
            const trek_launch_place place = trek_launch_place_of(*order, unit);
            assert_in_range(place.turn, 0, order->tiles - 1);
            assert_in_range(place.pair, 0, order->pairs - 1);
            assert_false(seen[place.turn * order->pairs + place.pair]);
            seen[place.turn * order->pairs + place.pair] = true;
        }
    free(seen);
    assert_int_equal(order->section % sharing, 0);
    for (int unit = 1; unit < units; unit++) {
        const trek_launch_place last = trek_launch_place_of(*order, unit - 1), next = trek_launch_place_of(*order, unit);
        const int section = next.pair / order->section;
        assert_true(last.pair / order->section <= section);
        if (last.pair / order->section == section)
            assert_true(last.turn < next.turn || (last.turn == next.turn && last.pair + 1 == next.pair));
    }
}

static void each_tile_once(void **state)
{
    static const int counts[] = { 1, 2, 3, 5, 7, 8, 12, 17, 48, 100 };
    enum { COUNTS = sizeof counts / sizeof counts[0] };
    int lasts = 0;
    for (int t = 0; t < COUNTS; t++)
        for (int p = 0; p < COUNTS; p++)
            for (int sharing = 1; sharing <= 4; sharing++)
                for (int heads = 0; heads <= counts[p] + 1; heads += 1 + heads / 4) {
                    const int pairs = counts[p] * sharing;
                    const trek_launch_order order = trek_launch_order_of(heads * 1600, 600, sharing, counts[t], pairs);
                    const int most = heads > counts[p] ? counts[p] : heads > 1 ? heads : 1;
                    assert_in_range(order.section, sharing, most * sharing);
                    const int sections = (counts[p] + most - 1) / most;
                    assert_int_equal((pairs + order.section - 1) / order.section, sections);
                    assert_true(order.section * sections - pairs < sections * sharing); /* about equally large */
                    lasts += pairs % order.section != 0;
                    takes_everything_once(&order, sharing, 1 + (t + p + heads) % 9);
                }
    assert_true(lasts > 100); /* sections that are smaller than the others */
}

/* As many blocks as a grid can have, and keys that are none. */
static void ends_of_ranges(void **state)
{
    const trek_launch_order one = trek_launch_order_of(INT64_C(1) << 40, 0, 1, 1, 0x7fffffff);
    trek_launch_place place = trek_launch_place_of(one, 0x7ffffffe);
    assert_int_equal(one.section, 0x7fffffff);
    assert_int_equal(place.turn, 0);
    assert_int_equal(place.pair, 0x7ffffffe);
    const trek_launch_order long_ones = trek_launch_order_of(0, INT64_C(1) << 40, 1, 0x7fffffff / 3, 3);
    place = trek_launch_place_of(long_ones, 0x7fffffff / 3 * 3 - 1);
    assert_int_equal(long_ones.section, 1);
    assert_int_equal(place.turn, 0x7fffffff / 3 - 1);
    assert_int_equal(place.pair, 2);
}

/* --- what is read from memory ----------------------------------------------------------------- */

/* A cache of `room` tiles, all of a size, of which the one that was wanted longest ago goes first. */
typedef struct tile_cache {
    int *next, *last, room, held; /* a ring from `tiles`, the number of none, of those that are held, the newest first */
    int tiles;
    int64_t missed;
} tile_cache;

static void link_after(tile_cache *c, int at, int tile)
{
    c->next[tile] = c->next[at];
    c->last[tile] = at;
    c->last[c->next[at]] = tile;
    c->next[at] = tile;
}

static void unlink_tile(tile_cache *c, int tile)
{
    c->next[c->last[tile]] = c->next[tile];
    c->last[c->next[tile]] = c->last[tile];
    c->next[tile] = -1;
}

static void want(tile_cache *c, int tile)
{
    if (c->next[tile] >= 0) {
        unlink_tile(c, tile);
    } else {
        c->missed++;
        if (c->held == c->room)
            unlink_tile(c, c->last[c->tiles]);
        else
            c->held++;
    }
    link_after(c, c->tiles, tile);
}

/* A causal kernel of attention: tiles of 16-bit rows of depth 64. */
typedef struct kernel_model {
    int own_rows, other_rows, in_flight; /* of a tile; blocks at a time */
    int reads, writes;                   /* tensors of the own side */
    bool of_keys;
} kernel_model;

enum { HEADS = 64 * 12, ROWS = 1024, ROW_BYTES = 128, L2 = 50 << 20, LAYERS = 12 };

typedef struct block_model {
    int unit, step, steps;
} block_model;

/* One step of a block: tiles of two tensors of the other side; with its first, its own rows, and with its last what it writes,
 * all in pieces of `piece` rows. */
static void step_of(tile_cache *c, const kernel_model *m, const trek_launch_order *order, block_model *b, int piece)
{
    const trek_launch_place place = trek_launch_place_of(*order, b->unit);
    const int tile = m->of_keys ? place.turn : order->tiles - 1 - place.turn, pieces = ROWS / piece;
    const int end = m->of_keys ? ROWS : (tile + 1) * m->own_rows, begin = m->of_keys ? tile * m->own_rows : 0;
    b->steps = (end - begin + m->other_rows - 1) / m->other_rows;
    const int owned = b->step == 0 ? m->reads : 0, written = b->step + 1 == b->steps ? m->writes : 0;
    for (int kind = 0; kind < 2 + owned + written; kind++) {
        const bool other = kind < 2;
        const int tensor = other ? kind : kind < 2 + owned ? kind : kind - owned + m->reads;
        const int first = (other ? begin + b->step * m->other_rows : tile * m->own_rows) / piece;
        for (int k = 0; k < (other ? m->other_rows : m->own_rows) / piece; k++)
            want(c, (tensor * HEADS + place.pair) * pieces + first + k);
    }
    b->step++;
}

/* GB of a training step by a cache of `bytes`, with heads in sections for one of `l2`. */
static double gigabytes(const kernel_model *m, int64_t bytes, int64_t l2)
{
    const int piece = m->own_rows < m->other_rows ? m->own_rows : m->other_rows;
    const trek_launch_order order = trek_launch_order_of(l2, 2 * ROWS * ROW_BYTES, 1, ROWS / m->own_rows, HEADS);
    const int units = order.tiles * order.pairs;
    tile_cache c = { .room = (int)(bytes / (piece * ROW_BYTES)), .tiles = (2 + m->reads + m->writes) * HEADS * (ROWS / piece) };
    block_model *blocks = calloc((size_t)m->in_flight, sizeof *blocks);
    c.next = malloc(2 * ((size_t)c.tiles + 1) * sizeof *c.next);
    assert_non_null(blocks);
    assert_non_null(c.next);
    memset(c.next, -1, ((size_t)c.tiles + 1) * sizeof *c.next);
    c.last = c.next + c.tiles + 1;
    c.next[c.tiles] = c.last[c.tiles] = c.tiles;
    int taken = 0, ended = 0;
    for (int k = 0; k < m->in_flight; k++)
        blocks[k].unit = taken++;
    while (ended < units)
        for (int k = 0; k < m->in_flight; k++) {
            if (blocks[k].unit >= units)
                continue;
            step_of(&c, m, &order, &blocks[k], piece);
            if (blocks[k].step == blocks[k].steps) {
                ended++;
                blocks[k] = (block_model){ .unit = taken++ };
            }
        }
    free(blocks);
    free(c.next);
    return (double)c.missed * piece * ROW_BYTES * LAYERS / 1e9;
}

/* GPT-2 at 64 x 1024 on 132 multiprocessors with 50 MB of L2: with sections nearly nothing is read twice, and little if each half
 * of the L2 holds the same; without them two or three times as much is read as there is. */
static void sections_are_read_once(void **state)
{
    static const struct {
        const char *what;
        kernel_model model;
    } kernels[] = {
        { "wgmma, outputs", { 128, 128, 132, 1, 1, false } },
        { "wgmma, gradients of keys and values", { 128, 128, 132, 2, 2, true } },
        { "wgmma, gradients of queries", { 128, 128, 132, 2, 1, false } },
        { "mma, outputs", { 128, 64, 264, 1, 1, false } },
        { "mma, gradients of keys and values", { 64, 64, 264, 2, 2, true } },
        { "mma, gradients of queries", { 64, 64, 396, 2, 1, false } },
    };
    for (int k = 0; k < (int)(sizeof kernels / sizeof kernels[0]); k++) {
        const kernel_model *m = &kernels[k].model;
        const double least = (2.0 + m->reads + m->writes) * HEADS * ROWS * ROW_BYTES * LAYERS / 1e9;
        const double now = gigabytes(m, L2, L2), half = gigabytes(m, L2 / 2, L2), without = gigabytes(m, L2, INT64_C(1) << 40);
        print_message("%s: %.1f GB a step (%.1f by half the cache), %.1f without sections, at least %.1f\n", kernels[k].what, now,
                      half, without, least);
        assert_true(now <= 1.02 * least);
        assert_true(half <= 1.25 * least);
        assert_true(without >= 1.9 * least);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_tile_once), cmocka_unit_test(ends_of_ranges), cmocka_unit_test(sections_are_read_once),
    };
    return cmocka_run_group_tests_name("launch_order", tests, NULL, NULL);
}
