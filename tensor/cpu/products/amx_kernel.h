/* SPDX-License-Identifier: Apache-2.0 */
/* A block of up to 2 x 2 tiles of C, in terms of the tile instructions. Included by amx_plain.c after amx_plain.h and by
 * amx_hardware.c after amx_hardware.h; TILE_KERNEL_INLINE says how its functions are inlined. */

/* Loads the two tiles of one term of A, or of B. */
TILE_KERNEL_INLINE void load_a(tile_unit *u, const int rows, const uint16_t *const a[2], int64_t offset, int term)
{
    tile_load(u, 4, a[0] + offset + term * TREK_AMX_NUMBERS, TILE_ROW_BYTES);
    if (rows == 2)
        tile_load(u, 5, a[1] + offset + term * TREK_AMX_NUMBERS, TILE_ROW_BYTES);
}

TILE_KERNEL_INLINE void load_b(tile_unit *u, const int cols, const uint16_t *const b[2], int64_t offset, int term)
{
    tile_load(u, 6, b[0] + offset + term * TREK_AMX_NUMBERS, TILE_ROW_BYTES);
    if (cols == 2)
        tile_load(u, 7, b[1] + offset + term * TREK_AMX_NUMBERS, TILE_ROW_BYTES);
}

TILE_KERNEL_INLINE void dot_all(tile_unit *u, const int rows, const int cols)
{
    tile_dot(u, 0, 4, 6);
    if (cols == 2)
        tile_dot(u, 1, 4, 7);
    if (rows == 2)
        tile_dot(u, 2, 5, 6);
    if (rows == 2 && cols == 2)
        tile_dot(u, 3, 5, 7);
}

/* Adds the products of one step along k in which a term but the highest has a part. Of three terms those of which a sum in f32
 * has no bit are left out: the lowest ones with each other and with the middle ones. The order saves loads. */
TILE_KERNEL_INLINE void low_products(tile_unit *u, const int rows, const int cols, const int terms, const trek_amx_block *block,
                                     int64_t offset)
{
    load_a(u, rows, block->a, offset, terms - 1);
    load_b(u, cols, block->b, offset, 0);
    dot_all(u, rows, cols);
    if (terms == 3) {
        load_a(u, rows, block->a, offset, 1);
        dot_all(u, rows, cols);
        load_b(u, cols, block->b, offset, 1);
        dot_all(u, rows, cols);
        load_a(u, rows, block->a, offset, 0);
        dot_all(u, rows, cols);
        load_b(u, cols, block->b, offset, 2);
    } else {
        load_a(u, rows, block->a, offset, 0);
        load_b(u, cols, block->b, offset, 1);
    }
    dot_all(u, rows, cols);
}

/* Adds the product of the highest terms. */
TILE_KERNEL_INLINE void high_product(tile_unit *u, const int rows, const int cols, const trek_amx_block *block, int64_t offset)
{
    load_a(u, rows, block->a, offset, 0);
    load_b(u, cols, block->b, offset, 0);
    dot_all(u, rows, cols);
}

/* Sum 2 i + j is at row 16 i and column 16 j of the block. */
TILE_KERNEL_INLINE void store_sums(tile_unit *u, const int rows, const int cols, const trek_amx_block *block)
{
    const int64_t stride = block->c_row * (int64_t)sizeof(float);
    float *low = block->c + TREK_AMX_LANES * block->c_row;
    tile_store(u, 0, block->c, stride);
    if (cols == 2)
        tile_store(u, 1, block->c + TREK_AMX_LANES, stride);
    if (rows == 2)
        tile_store(u, 2, low, stride);
    if (rows == 2 && cols == 2)
        tile_store(u, 3, low + TREK_AMX_LANES, stride);
}

/* The small products of all steps come first, while the sums are small: they round little away. */
TILE_KERNEL_INLINE void multiply_as(tile_unit *u, const int rows, const int cols, const int terms, const trek_amx_block *block)
{
    const int64_t next = terms * TREK_AMX_NUMBERS, end = block->depth * next;
    tile_zero(u, 0);
    tile_zero(u, 1);
    tile_zero(u, 2);
    tile_zero(u, 3);
    for (int64_t offset = 0; terms > 1 && offset < end; offset += next)
        low_products(u, rows, cols, terms, block, offset);
    for (int64_t offset = 0; offset < end; offset += next)
        high_product(u, rows, cols, block, offset);
    store_sums(u, rows, cols, block);
}

TILE_KERNEL_INLINE void multiply_terms(tile_unit *u, const int rows, const int cols, const trek_amx_block *block)
{
    if (block->terms == 1)
        multiply_as(u, rows, cols, 1, block);
    else if (block->terms == 2)
        multiply_as(u, rows, cols, 2, block);
    else
        multiply_as(u, rows, cols, 3, block);
}

TILE_KERNEL_INLINE void multiply_block(tile_unit *u, const trek_amx_block *block)
{
    if (block->a[1] && block->b[1])
        multiply_terms(u, 2, 2, block);
    else if (block->a[1])
        multiply_terms(u, 2, 1, block);
    else if (block->b[1])
        multiply_terms(u, 1, 2, block);
    else
        multiply_terms(u, 1, 1, block);
}
