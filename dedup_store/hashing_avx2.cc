#define REKINDLE_FINGERPRINT FingerprintAvx2
#include "dedup_store/hashing_kernel.inc"
