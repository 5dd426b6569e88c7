#define REKINDLE_PAGE_FINGERPRINT PageFingerprintAvx2
#define REKINDLE_FINGERPRINT FingerprintAvx2
#include "dedup_store/hashing_kernel.inc"
