# rk_link_fast(TARGET)  has LLVM's linker, where it is there, link a program that only tests run: a sixth of the time.
find_program(REKINDLE_LLD ld.lld)
function(rk_link_fast target)
  if(REKINDLE_LLD)
    target_link_options(${target} PRIVATE -fuse-ld=lld)
  endif()
endfunction()
