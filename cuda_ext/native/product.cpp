// Calls levels/product.cpp with the memory that it needs.
#include "product.h"

#include "scratch.h"

namespace surefoot {

void multiply(const Product& product, const float* a, const float* b, const float* bias, float* c) {
  SUREFOOT_CALL(run_product, product, a, b, bias, c, scratch(product_scratch));
}

}  // namespace surefoot
