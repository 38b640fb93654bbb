use marin_core::Error;
use marin_core::mixture::check::worst;
use marin_core::mixture::documents;
use marin_core::mixture::order::{Order, Place, Places, Run};
use marin_core::mixture::quotas::{Phase, Quotas};
use numpy::{IntoPyArray, PyArray1, PyArray2, PyReadonlyArray1};
use pyo3::prelude::*;

use crate::to_py_err;

/// Stage, cell and index of rows.
type Columns<'py> =
    (Bound<'py, PyArray1<u16>>, Bound<'py, PyArray1<u16>>, Bound<'py, PyArray1<i64>>);

/// Documents and their epochs.
type Documents<'py> = (Bound<'py, PyArray1<i64>>, Bound<'py, PyArray1<i64>>);

/// The first row of a plan, and its phases as rows and weights.
type Plan = (u64, Vec<(u64, Vec<f64>)>);

#[pyclass(frozen, module = "marin._native")]
struct RowOrder(Order);

#[pymethods]
impl RowOrder {
    #[new]
    fn new(
        py: Python<'_>,
        plans: Vec<Plan>,
        stages: Vec<u64>,
        runs: Vec<(u64, u64)>,
        seed: u64,
    ) -> PyResult<Self> {
        py.detach(|| {
            let mut quotas: Option<Quotas> = None;
            for (row, phases) in plans {
                let phases: Vec<Phase> =
                    phases.into_iter().map(|(rows, weights)| Phase { rows, weights }).collect();
                quotas = Some(match quotas {
                    None => Quotas::new(&phases)?,
                    Some(quotas) => quotas.changed_at(row, &phases)?,
                });
            }
            let quotas = quotas.ok_or_else(|| Error::invalid("no phases"))?;
            let runs = runs
                .into_iter()
                .map(|(first_row, batch_size)| Run { first_row, batch_size })
                .collect();
            Order::new(quotas, stages, runs, seed)
        })
        .map(Self)
        .map_err(to_py_err)
    }

    #[getter]
    fn rows_total(&self) -> u64 {
        self.0.quotas().end_row()
    }

    #[getter]
    fn bound(&self) -> u128 {
        self.0.quotas().bound()
    }

    #[getter]
    fn depth(&self) -> usize {
        self.0.quotas().depth()
    }

    fn rows<'py>(&self, py: Python<'py>, start: u64, count: usize) -> PyResult<Columns<'py>> {
        if count as u64 > self.0.quotas().end_row() {
            let end = self.0.quotas().end_row();
            return Err(to_py_err(Error::invalid(format!("{count} rows of a run of {end}"))));
        }
        let (stages, cells, indices) = py
            .detach(|| {
                let (mut stages, mut cells) = (vec![0; count], vec![0; count]);
                let mut indices = vec![0; count];
                let mut places =
                    Places { stages: &mut stages, cells: &mut cells, indices: &mut indices };
                self.0.fill(start, &mut places).map(|()| (stages, cells, indices))
            })
            .map_err(to_py_err)?;
        Ok((stages.into_pyarray(py), cells.into_pyarray(py), indices.into_pyarray(py)))
    }

    fn locate<'py>(
        &self,
        py: Python<'py>,
        rows: PyReadonlyArray1<'py, i64>,
    ) -> PyResult<Columns<'py>> {
        let rows = rows.as_array();
        let places: Vec<Place> = py
            .detach(|| rows.iter().map(|&row| self.0.locate(row as u64)).collect::<Result<_, _>>())
            .map_err(to_py_err)?;
        Ok(to_arrays(py, &places))
    }

    fn rows_of<'py>(
        &self,
        py: Python<'py>,
        cell: usize,
        start: u64,
        count: u64,
    ) -> PyResult<Bound<'py, PyArray1<i64>>> {
        self.check_cell(cell)?;
        let rows: Option<Vec<i64>> = py.detach(|| {
            (start..start.checked_add(count)?)
                .map(|index| self.0.row_of(cell, index).map(|row| row as i64))
                .collect()
        });
        rows.map(|rows| rows.into_pyarray(py)).ok_or_else(|| {
            let end = self.0.quotas().end_row();
            let held = self.0.quotas().count_of(cell, end);
            to_py_err(Error::invalid(format!(
                "{count} rows from row {start} of {held} of the cell"
            )))
        })
    }

    fn counts_at<'py>(&self, py: Python<'py>, row: u64) -> PyResult<Bound<'py, PyArray1<i64>>> {
        self.check_row(row)?;
        let mut counts = vec![0; self.0.quotas().cells()];
        self.0.quotas().counts_at(row, &mut counts);
        Ok(signed(counts).into_pyarray(py))
    }

    fn targets_at(&self, row: u64) -> PyResult<Vec<u128>> {
        self.check_row(row)?;
        Ok(self.0.quotas().targets_at(row))
    }

    fn stage_rows<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray2<i64>>> {
        let rows: Vec<Vec<i64>> = self.0.stage_rows().into_iter().map(signed).collect();
        Ok(PyArray2::from_vec2(py, &rows)?)
    }

    fn worst(
        &self,
        py: Python<'_>,
        first: u64,
        last: u64,
        step: u64,
        threads: usize,
    ) -> PyResult<(u128, usize, u64)> {
        let found =
            py.detach(|| worst(self.0.quotas(), first, last, step, threads)).map_err(to_py_err)?;
        Ok((found.units, found.cell, found.row))
    }
}

impl RowOrder {
    fn check_row(&self, row: u64) -> PyResult<()> {
        let end = self.0.quotas().end_row();
        if row > end {
            return Err(to_py_err(Error::invalid(format!("row {row} of a run of {end} rows"))));
        }
        Ok(())
    }

    fn check_cell(&self, cell: usize) -> PyResult<()> {
        let cells = self.0.quotas().cells();
        if cell >= cells {
            return Err(to_py_err(Error::invalid(format!("cell {cell} of {cells}"))));
        }
        Ok(())
    }
}

#[pyclass(frozen, module = "marin._native")]
pub struct DocumentOrder(pub documents::DocumentOrder);

#[pymethods]
impl DocumentOrder {
    #[new]
    fn new(seed: u64, cell: u64, documents: u64, seen: u64) -> PyResult<Self> {
        documents::DocumentOrder::new(seed, cell, documents, seen).map(Self).map_err(to_py_err)
    }

    fn take<'py>(&self, py: Python<'py>, start: u64, count: usize) -> Documents<'py> {
        let (order, epochs): (Vec<i64>, Vec<i64>) = py.detach(|| {
            self.0.from(start).take(count).map(|(at, epoch)| (at as i64, epoch as i64)).unzip()
        });
        (order.into_pyarray(py), epochs.into_pyarray(py))
    }
}

fn to_arrays<'py>(py: Python<'py>, places: &[Place]) -> Columns<'py> {
    let stages: Vec<u16> = places.iter().map(|place| place.stage as u16).collect();
    let cells: Vec<u16> = places.iter().map(|place| place.cell as u16).collect();
    let indices: Vec<i64> = places.iter().map(|place| place.index as i64).collect();
    (stages.into_pyarray(py), cells.into_pyarray(py), indices.into_pyarray(py))
}

fn signed(counts: Vec<u64>) -> Vec<i64> {
    counts.into_iter().map(|count| count as i64).collect()
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<RowOrder>()?;
    module.add_class::<DocumentOrder>()
}
