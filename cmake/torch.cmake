# LibTorch is the PyPI wheel, unpacked. find_package(Torch) of that wheel fails with Debian's CMake 3.25, so the
# imported target is declared by hand. Only torch_cpu and c10 are linked; a GPU build loads libtorch_cuda late.
set(HOLDFAST_HAVE_TORCH OFF)
if(NOT HOLDFAST_TORCH STREQUAL "OFF")
  if(EXISTS ${HOLDFAST_TORCH_DIR}/torch/lib/libtorch_cpu.so)
    set(HOLDFAST_HAVE_TORCH ON)
  elseif(HOLDFAST_TORCH STREQUAL "ON")
    message(FATAL_ERROR "HOLDFAST_TORCH=ON but ${HOLDFAST_TORCH_DIR}/torch/lib/libtorch_cpu.so does not exist; "
                        "run scripts/install-deps, or set HOLDFAST_TORCH_DIR")
  endif()
endif()

if(HOLDFAST_HAVE_TORCH)
  find_package(absl REQUIRED)      # imported targets are known only where they were looked for
  find_package(yaml-cpp REQUIRED)
  set(_torch ${HOLDFAST_TORCH_DIR}/torch)
  add_library(holdfast_torch INTERFACE)
  target_include_directories(holdfast_torch SYSTEM INTERFACE
    ${_torch}/include ${_torch}/include/torch/csrc/api/include)
  target_compile_definitions(holdfast_torch INTERFACE USE_C10D_GLOO)
  target_link_directories(holdfast_torch INTERFACE ${_torch}/lib)
  target_link_libraries(holdfast_torch INTERFACE torch_cpu c10)
  # libcudart and libcupti come from the CUDA wheels, unpacked beside torch.
  target_link_options(holdfast_torch INTERFACE
    -Wl,-rpath,${_torch}/lib -Wl,-rpath,${HOLDFAST_TORCH_DIR}/nvidia/cu13/lib
    -Wl,--allow-shlib-undefined)
endif()
message(STATUS "LibTorch: ${HOLDFAST_HAVE_TORCH} (${HOLDFAST_TORCH_DIR})")
